"""What watches the service (deploy/prometheus, deploy/grafana), read and run."""
