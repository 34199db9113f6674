{{- define "atelier.env-base" -}}
{{- /* Written by `make chart` from deploy/k8s. */ -}}
{{- $site := include "atelier.site" $ | fromYaml -}}
{{- $tracing := $.Values.tracing | toString -}}
{{- $pools := include "atelier.pools-namespace" $ -}}
{{- $uid := ternary 0 10001 $.Values.tpu_root -}}
{{- $dropped := ternary "NET_RAW" "ALL" $.Values.tpu_root -}}
ATELIER_COMPILE_CACHE: /var/cache/atelier
ATELIER_CONFIG: /etc/atelier/atelier.toml
ATELIER_LOG_FORMAT: json
ATELIER_QUEUE__MODEL_RETENTION_S: "31536000"
{{- if eq $.Values.redis "sentinel" }}
ATELIER_QUEUE__WAIT_REPLICAS: "1"
{{- end }}
{{- if eq $.Values.redis "memorystore" }}
ATELIER_REDIS__CA_FILE: /run/secrets/atelier-redis/ca.pem
ATELIER_REDIS__CHECK_NAME: 'false'
{{- end }}
ATELIER_REDIS__PASSWORD_FILE: /run/secrets/atelier-redis/password
{{- if eq $.Values.redis "sentinel" }}
ATELIER_REDIS__SENTINEL_PASSWORD_FILE: /run/secrets/atelier-redis/password
ATELIER_REDIS__SENTINEL_USERNAME: atelier
{{- end }}
{{- if eq $.Values.redis "pod" }}
ATELIER_REDIS__URL: redis://atelier-redis:6379
{{- else if eq $.Values.redis "sentinel" }}
ATELIER_REDIS__URL: redis+sentinel://atelier-redis-0.atelier-redis.atelier.svc:26379,atelier-redis-1.atelier-redis.atelier.svc:26379,atelier-redis-2.atelier-redis.atelier.svc:26379/atelier
{{- else if eq $.Values.redis "memorystore" }}
ATELIER_REDIS__URL: "rediss://{{ $.Values.redis_host }}:6378"
{{- else }}
ATELIER_REDIS__URL: "{{ $.Values.redis_url }}"
{{- end }}
{{- if has $.Values.redis (list "pod" "sentinel" "external") }}
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
