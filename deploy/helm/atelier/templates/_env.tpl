{{- define "atelier.env-base" -}}
{{- /* Written by `make chart` from deploy/k8s. */ -}}
{{- $site := include "atelier.site" $ | fromYaml -}}
{{- $tracing := $.Values.tracing | toString -}}
ATELIER_COMPILE_CACHE: /var/cache/atelier
ATELIER_CONFIG: /etc/atelier/atelier.toml
ATELIER_LOG_FORMAT: json
ATELIER_QUEUE__MODEL_RETENTION_S: "31536000"
{{- if eq $.Values.redis "memorystore" }}
ATELIER_REDIS__CA_FILE: /run/secrets/atelier-redis/ca.pem
ATELIER_REDIS__CHECK_NAME: 'false'
{{- end }}
ATELIER_REDIS__PASSWORD_FILE: /run/secrets/atelier-redis/password
{{- if eq $.Values.redis "pod" }}
ATELIER_REDIS__URL: redis://atelier-redis:6379
{{- else if eq $.Values.redis "memorystore" }}
ATELIER_REDIS__URL: "rediss://{{ $.Values.redis_host }}:6378"
{{- else }}
ATELIER_REDIS__URL: "{{ $.Values.redis_url }}"
{{- end }}
{{- if has $.Values.redis (list "pod" "external") }}
ATELIER_REDIS__USERNAME: atelier
{{- else }}
ATELIER_REDIS__USERNAME: 'null'
{{- end }}
ATELIER_STATE_DIR: /var/lib/atelier
ATELIER_STORE__URL: "{{ $site.store }}"
{{- if eq $tracing "true" }}
ATELIER_TRACING__ENDPOINT: http://opentelemetry-collector.gke-managed-otel.svc.cluster.local:4318
ATELIER_TRACING__GCP_PROJECT: "{{ $site.project }}"
ATELIER_TRACING__SAMPLE_RATIO: "1"
{{- end }}
ATELIER_USAGE__REGION: "{{ $site.region }}"
{{- if eq $tracing "true" }}
OTEL_RESOURCE_ATTRIBUTES: "gcp.project_id={{ $site.project }}"
{{- end }}
{{- end -}}
