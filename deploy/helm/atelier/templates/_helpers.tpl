{{- /* Names of the site: after the project unless they are given. */ -}}
{{- define "atelier.site" -}}
{{- $site := .Values.site | default dict -}}
{{- $project := required "site.project: say which project of Google Cloud this is" $site.project -}}
{{- $bucket := $site.bucket | default (printf "%s-atelier" $project) -}}
{{- $tag := $site.tag | default .Chart.AppVersion -}}
{{- $registry := $site.registry -}}
{{- if not $registry -}}
{{- $region := required "site.region: say which region the registry of the images is in, or site.registry" $site.region -}}
{{- $registry = printf "%s-docker.pkg.dev/%s/atelier" $region $project -}}
{{- end -}}
{{- dict
  "project" $project
  "region" ($site.region | default "")
  "registry" $registry
  "tag" $tag
  "worker_tag" ($site.worker_tag | default $tag)
  "bucket" $bucket
  "weights_bucket" ($site.weights_bucket | default (printf "%s-atelier-weights" $project))
  "store" ($site.store | default (printf "gs://%s/store" $bucket))
  "service_account" ($site.service_account | default (printf "atelier@%s.iam.gserviceaccount.com" $project))
  "prometheus" ($site.prometheus | default (printf "https://monitoring.googleapis.com/v1/projects/%s/location/global/prometheus" $project))
  "zone" ($site.zone | default "")
  "weights_disk" ($site.weights_disk | default (printf "projects/%s/zones/%s/disks/atelier-weights" $project $site.zone))
  "load_balancer" ($site.load_balancer | default "130.211.0.0/22")
| toYaml -}}
{{- end -}}

{{- /* Namespace of the pools: one of their own if they run as root. */ -}}
{{- define "atelier.pools-namespace" -}}
{{ .Release.Namespace }}{{ if .Values.tpu_root }}-tpu{{ end }}
{{- end -}}

{{- /* Matchers of this install's series, as they stand in a text of YAML. */ -}}
{{- define "atelier.place" -}}
namespace=\"{{ .Release.Namespace }}\"{{ with .Values.cluster }}, cluster=\"{{ . }}\"{{ end }}
{{- end -}}

{{- /* Rules of prices in place of the examples; tools/rules.py writes the same. */ -}}
{{- define "atelier.prices" -}}
{{- range $chip, $price := .Values.prices }}
{{- range $kind := list "standard" "spot" }}
{{- with get $price $kind }}
{{- printf "        - {record: atelier:chip_price:dollars_per_hour, expr: vector(%s), labels: {chip: %q, spot: %q}}\n" (toJson .) $chip (eq $kind "spot" | toString) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* Mistakes that the schema cannot see; tools/cluster/values.py finds them, too. */ -}}
{{- define "atelier.check" -}}
{{- $pools := list -}}
{{- range .Values.models -}}
{{- $pool := include "atelier.pool" . -}}
{{- if not (regexMatch "^[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?$" $pool) -}}
{{- fail (printf "models: %s: %q is no name of a pool; give it one of at most 36 letters, digits and dashes by `pool`" .name $pool) -}}
{{- end -}}
{{- if gt (len (printf "%s.%s" $.Release.Namespace $pool)) 63 -}}
{{- fail (printf "models: %s: namespace and pool are too long together" .name) -}}
{{- end -}}
{{- if has $pool $pools -}}
{{- fail (printf "models: several would have the pool %s" $pool) -}}
{{- end -}}
{{- $pools = append $pools $pool -}}
{{- if gt (.min | default 0 | int) (.max | default 4 | int) -}}
{{- fail (printf "models: %s: min is above max" .name) -}}
{{- end -}}
{{- if gt (get (.pool_settings | default dict) "drain_s" | default 0 | float64) (eq (include "atelier.capacity" .) "spot" | ternary 10.0 30.0) -}}
{{- fail (printf "models: %s: pool_settings.drain_s: pods have less time" .name) -}}
{{- end -}}
{{- end -}}
{{- range $key, $known := dict "weights" (list "gcs-fuse" "hyperdisk-ml" "pvc") "redis" (list "pod" "sentinel" "memorystore" "external") -}}
{{- if not (has (get $.Values $key) $known) -}}
{{- fail (printf "%s: say one of %s" $key (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.weights "hyperdisk-ml" -}}
{{- $_ := required "site.zone: say where the Hyperdisk is" .Values.site.zone -}}
{{- end -}}
{{- if eq .Values.redis "memorystore" -}}
{{- $_ := required "redis_host: say where the Memorystore is" .Values.redis_host -}}
{{- end -}}
{{- if eq .Values.redis "external" -}}
{{- $_ := required "redis_url: say where the Redis or its Sentinels are" .Values.redis_url -}}
{{- $_ := required "redis_network: say which network its servers are in" .Values.redis_network -}}
{{- end -}}
{{- end -}}

{{- /* What front ends and pools read as their environment. */ -}}
{{- define "atelier.env" -}}
{{- $env := include "atelier.env-base" . | fromYaml -}}
{{- range $name, $value := .Values.env -}}{{- $_ := set $env $name $value -}}{{- end -}}
{{- toYaml $env -}}
{{- end -}}

{{- define "atelier.frontend" -}}
{{- .Values.frontend | default (.Files.Get "files/frontend.toml") -}}
{{- end -}}

{{- /* Of a model: its pool, its share of waiting work, and how it gets machines. */ -}}
{{- define "atelier.pool" -}}
{{- .pool | default (regexReplaceAll "[^a-z0-9]+" (lower .name) "-" | trimAll "-") -}}
{{- end -}}

{{- define "atelier.share" -}}
{{- required (printf "models: %s has no objective_s: `python -m tools.cluster --helm FILE` prints values in which it is reckoned" .name) .objective_s | toJson -}}
{{- end -}}

{{- define "atelier.capacity" -}}
{{- if not .capacity }}none{{ else if has "spot" .capacity }}spot{{ else }}some{{ end -}}
{{- end -}}

{{- define "atelier.machine" -}}
{{- $by_topology := get (.Files.Get "files/machines.yaml" | fromYaml) .model.chip | default dict -}}
{{- get $by_topology (.model.topology | toString) | required (printf "models: %s: no machine has %s:%s" .model.name .model.chip (.model.topology | toString)) | toYaml -}}
{{- end -}}

{{- /* A pool's settings; tools/cluster/values.py writes the same. */ -}}
{{- define "atelier.pool-toml" -}}
{{- $machine := include "atelier.machine" . | fromYaml -}}
{{- $pool := include "atelier.pool" .model -}}
{{- $of_model := dict "source" .model.source "dtype" (.model.dtype | default "bfloat16") "cold_start_s" (.model.cold_start_s | default 2700) -}}
{{- $_ := set $of_model "objective_s" (include "atelier.share" .model | float64) -}}
{{- with .model.warmup }}{{ $_ := set $of_model "warmup" . }}{{ end -}}
{{- range $key, $value := .model.model_settings }}{{ $_ := set $of_model $key $value }}{{ end -}}
{{- $of_pool := dict "model" .model.name "mesh" (.model.layout | default "auto") "metrics_port" 9100 -}}
{{- with .model.slots }}{{ $_ := set $of_pool "slots" . }}{{ end -}}
{{- if eq (include "atelier.capacity" .model) "spot" }}{{ $_ := set $of_pool "drain_s" 10 }}{{ end -}}
{{- if eq $machine.form "slice" }}{{ $_ := set $of_pool "hosts" (dict "count" $machine.hosts "port" 8477) }}{{ end -}}
{{- range $key, $value := .model.pool_settings }}{{ $_ := set $of_pool $key $value }}{{ end -}}
{{- include "atelier.table" (dict "name" (printf "models.%s" (include "atelier.key" .model.name)) "settings" $of_model) }}
{{ include "atelier.table" (dict "name" (printf "pools.%s" (include "atelier.key" $pool)) "settings" $of_pool) }}
{{- $sections := .model.sections | default dict }}
{{- range $name := keys $sections | sortAlpha }}
{{ include "atelier.table" (dict "name" $name "settings" (get $sections $name)) }}
{{- end -}}
{{- end -}}

{{- define "atelier.table" -}}
[{{ .name }}]
{{ range $key := keys .settings | sortAlpha -}}
{{ include "atelier.key" $key }} = {{ include "atelier.value" (get $.settings $key) }}
{{ end -}}
{{- end -}}

{{- /* Keys and texts by toRawJson: toJson writes <, > and & as escapes. */ -}}
{{- define "atelier.key" -}}
{{- if regexMatch "^[A-Za-z0-9_-]+$" . }}{{ . }}{{ else }}{{ . | toRawJson }}{{ end -}}
{{- end -}}

{{- /* JSON, but for the sign between a key and its value. */ -}}
{{- define "atelier.value" -}}
{{- if kindIs "map" . -}}
{{- $items := list -}}
{{- range $key := keys . | sortAlpha -}}
{{- $items = append $items (printf "%s = %s" (include "atelier.key" $key) (include "atelier.value" (get $ $key))) -}}
{{- end -}}
{{ "{" }}{{ join ", " $items }}{{ "}" }}
{{- else if kindIs "slice" . -}}
{{- $items := list -}}
{{- range . }}{{ $items = append $items (include "atelier.value" .) }}{{ end -}}
[{{ join ", " $items }}]
{{- else -}}
{{- . | toRawJson -}}
{{- end -}}
{{- end -}}
