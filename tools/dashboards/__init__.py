"""The dashboards: written here, as JSON in `dashboards/` for Grafana (`make dashboards`)."""
