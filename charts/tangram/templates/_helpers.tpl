{{/* Chart name, overridable. */}}
{{- define "tangram.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Prefix of object names: the release's name, with the chart's unless that is in it already. */}}
{{- define "tangram.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tangram.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tangram.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "tangram.labels" -}}
{{ include "tangram.selectorLabels" . }}
{{ include "tangram.commonLabels" . }}
{{- end }}

{{- define "tangram.agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tangram.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end }}

{{- define "tangram.agent.labels" -}}
{{ include "tangram.agent.selectorLabels" . }}
{{ include "tangram.commonLabels" . }}
{{- end }}

{{- define "tangram.gateway.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tangram.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: gateway
{{- end }}

{{- define "tangram.gateway.labels" -}}
{{ include "tangram.gateway.selectorLabels" . }}
{{ include "tangram.commonLabels" . }}
{{- end }}

{{- define "tangram.commonLabels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tangram
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tangram.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "tangram.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "tangram.agent.namespace" -}}
{{- default .Release.Namespace .Values.agent.namespace }}
{{- end }}

{{/* The usernames of the operator and of the agents, as the API server sees them. */}}
{{- define "tangram.username" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "tangram.serviceAccountName" . }}
{{- end }}

{{- define "tangram.agent.username" -}}
system:serviceaccount:{{ include "tangram.agent.namespace" . }}:{{ include "tangram.fullname" . }}-agent
{{- end }}

{{/* A policy for one user and one operation on one resource, up to its validations, and the binding that puts it into
     force. dict "root" $ "name" … "labels" … "username" … "group" … "resource" … "operation" … and, of a hook, "annotations" … */}}
{{- define "tangram.policy" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include .labels .root | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels:
    {{- include .labels .root | nindent 4 }}
  {{- with .annotations }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - apiGroups: [{{ .group | quote }}]
        apiVersions: ["*"]
        resources: [{{ .resource }}]
        operations: [{{ .operation }}]
  matchConditions:
    - name: username
      expression: request.userInfo.username == '{{ .username }}'
{{- end }}

{{/* CEL: two maps, of which either may be absent, differ in no key but those for which `except` is true of `key`.
     dict "of" "metadata.?labels" "except" "key == 'a'" */}}
{{- define "tangram.unchanged" -}}
object.{{ .of }}.orValue({}).all(key, {{ .except }} || oldObject.{{ .of }}.orValue({})[?key] == optional.of(object.{{ .of }}.orValue({})[key])) &&
oldObject.{{ .of }}.orValue({}).all(key, {{ .except }} || key in object.{{ .of }}.orValue({}))
{{- end }}

{{/* Reference of an image: dict "root" $ "image" .Values.image.operator */}}
{{- define "tangram.image" -}}
{{- $registry := .root.Values.image.registry | trimSuffix "/" -}}
{{- if not $registry -}}
{{- fail "image.registry is not set: Tangram publishes no images, so name your own registry. Build and push them with `make images push REGISTRY=registry.example.com/team`, then install with `--set image.registry=registry.example.com/team`." -}}
{{- end -}}
{{- $reference := printf "%s/%s" $registry .image.repository -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $reference .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $reference (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end }}

{{/* The PriorityClasses by the last part of their names. Values are immutable, so they never change here; none is
     below zero: any pod without a class could evict such pods, and no cluster autoscaler grows for those below -10. */}}
{{- define "tangram.priorityClasses" -}}
low: {value: 0, description: "LLMDeployments that get GPUs after all others."}
standard: {value: 1000, description: "LLMDeployments that name no PriorityClass."}
high: {value: 10000, description: "LLMDeployments that get GPUs before all others."}
{{- end }}

{{/* The class of LLMDeployments that name none; empty: none. */}}
{{- define "tangram.defaultPriorityClassName" -}}
{{- if .Values.defaultPriorityClassName }}
{{- .Values.defaultPriorityClassName }}
{{- else if .Values.priorityClasses.create }}
{{- include "tangram.fullname" . }}-standard
{{- end }}
{{- end }}

{{/* Tolerations of the holds that the operator places on nodes (tangram.eligibility.devices.tolerations): a pod that asks for no
     GPU may start on a node whose layout changes. Where all nodes are held, the pod that lifts the holds must. */}}
{{- define "tangram.holdTolerations" -}}
{{- $devices := `
gpu mig-1g.10gb mig-1g.10gb.me mig-1g.12gb mig-1g.12gb.me mig-1g.18gb mig-1g.18gb.me mig-1g.20gb mig-1g.23gb
mig-1g.23gb.me mig-1g.24gb mig-1g.24gb-me mig-1g.24gb.gfx mig-1g.24gb.me mig-1g.24gb.me.all mig-1g.35gb mig-1g.45gb
mig-1g.47gb mig-1g.5gb mig-1g.5gb.me mig-1g.6gb mig-1g.6gb.me mig-2g.10gb mig-2g.12gb mig-2g.12gb.me mig-2g.20gb
mig-2g.24gb mig-2g.35gb mig-2g.45gb mig-2g.47gb mig-2g.48gb mig-2g.48gb-me mig-2g.48gb.gfx mig-2g.48gb.me.all
mig-3g.20gb mig-3g.40gb mig-3g.47gb mig-3g.71gb mig-3g.90gb mig-3g.93gb mig-4g.20gb mig-4g.24gb mig-4g.40gb
mig-4g.47gb mig-4g.71gb mig-4g.90gb mig-4g.93gb mig-4g.96gb mig-4g.96gb.gfx mig-7g.141gb mig-7g.180gb mig-7g.186gb
mig-7g.40gb mig-7g.80gb mig-7g.94gb
` }}
{{- range regexSplit "\\s+" (trim $devices) -1 }}
- {key: hold.tangram.dev/{{ . }}, operator: Exists, effect: NoSchedule}
{{- end }}
{{- end }}

{{/* Labels and annotations of the user beside those of the chart: a key twice is no object.
     dict "value" … "given" … "own" the chart's, as text */}}
{{- define "tangram.noneOfOurs" -}}
{{- range $key, $_ := .given }}
{{- if hasKey (fromYaml $.own) $key }}
{{- fail (printf "%s: leave out %s, which the chart itself sets." $.value $key) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Rules between values, which the schema cannot express. */}}
{{- define "tangram.validate" -}}
{{- if (.Values.global).imageRegistry }}
{{- fail "global: imageRegistry is not used; set image.registry, the registry and the path of Tangram's images." }}
{{- end }}
{{- $labels := include "tangram.labels" . }}
{{- range $value, $given := dict "serviceMonitor: labels" .Values.serviceMonitor.labels "podMonitor: labels" .Values.podMonitor.labels "prometheusRule: labels" .Values.prometheusRule.labels "agent: metrics.labels" .Values.agent.metrics.labels }}
{{- include "tangram.noneOfOurs" (dict "value" $value "given" $given "own" $labels) }}
{{- end }}
{{- $onPods := printf "%s\napp.kubernetes.io/part-of: tangram" (include "tangram.selectorLabels" .) }}
{{- include "tangram.noneOfOurs" (dict "value" "podLabels" "given" .Values.podLabels "own" $onPods) }}
{{- $annotations := "checksum/config: x" }}
{{- if not .Values.serviceMonitor.enabled }}
{{- $annotations = "{checksum/config: x, prometheus.io/scrape: x, prometheus.io/port: x, prometheus.io/path: x}" }}
{{- end }}
{{- include "tangram.noneOfOurs" (dict "value" "podAnnotations" "given" .Values.podAnnotations "own" $annotations) }}
{{- if and .Values.gateway.enabled (not .Values.gateway.envoyImage) }}
{{- fail "gateway: envoyImage is not set; name Envoy's image by digest, docker.io/envoyproxy/envoy:distroless-v1.40.0@sha256:… or your copy of it." }}
{{- end }}
{{- $namespaces := .Values.networkPolicy.engines.namespaces | default .Values.watchNamespaces }}
{{- if and .Values.gateway.exclusive (not (and .Values.gateway.enabled .Values.networkPolicy.enabled $namespaces)) }}
{{- fail "gateway: exclusive needs gateway.enabled, networkPolicy.enabled, and namespaces in watchNamespaces or networkPolicy.engines.namespaces." }}
{{- end }}
{{- with .Values.leaderElection }}
{{- if not (and (lt (float64 .retrySeconds) (float64 .renewSeconds)) (lt (float64 .renewSeconds) (float64 .leaseSeconds))) }}
{{- fail (printf "leaderElection: retrySeconds (%v) < renewSeconds (%v) < leaseSeconds (%v) must hold, or two operators could write at once." .retrySeconds .renewSeconds .leaseSeconds) }}
{{- end }}
{{- end }}
{{- with .Values.advice }}
{{- if gt (float64 .settleSeconds) (float64 .latestSeconds) }}
{{- fail (printf "advice: settleSeconds (%v) must not be above latestSeconds (%v)." .settleSeconds .latestSeconds) }}
{{- end }}
{{- end }}
{{- with .Values.scrape }}
{{- if lt (float64 .windowSeconds) (mulf 4 (float64 .intervalSeconds)) }}
{{- fail (printf "scrape: windowSeconds (%v) must be at least four times intervalSeconds (%v), or rates have gaps." .windowSeconds .intervalSeconds) }}
{{- end }}
{{- end }}
{{- with .Values.prometheus }}
{{- if and .url (lt (float64 .windowSeconds) (mulf 4 (float64 .scrapeIntervalSeconds))) }}
{{- fail (printf "prometheus: windowSeconds (%v) must be at least four times scrapeIntervalSeconds (%v), or rates have gaps." .windowSeconds .scrapeIntervalSeconds) }}
{{- end }}
{{- if get (urlParse .url) "userinfo" }}
{{- fail "prometheus: url must not contain a user or a password: put them into a Secret, as a header, and name it in prometheus.auth." }}
{{- end }}
{{- with .auth }}
{{- $keys := compact (list .tokenKey .caKey .headersKey) }}
{{- if and $keys (not .secretName) }}
{{- fail "prometheus: auth.tokenKey, auth.caKey and auth.headersKey need auth.secretName." }}
{{- end }}
{{- if and .secretName (not $keys) }}
{{- fail "prometheus: auth.secretName needs auth.tokenKey, auth.caKey or auth.headersKey." }}
{{- end }}
{{- if and .tokenKey .serviceAccountToken }}
{{- fail "prometheus: auth.tokenKey and auth.serviceAccountToken are two tokens; set one." }}
{{- end }}
{{- end }}
{{- if and (.auth).caKey (hasPrefix "http://" .url) }}
{{- fail "prometheus: auth.caKey needs a url with https://." }}
{{- end }}
{{- end }}
{{- end }}

{{/* The section of the configuration file about Prometheus: the values, with the paths where keys of the Secret are mounted. */}}
{{- define "tangram.prometheus" -}}
{{- $settings := omit .Values.prometheus "auth" }}
{{- with .Values.prometheus.auth }}
{{- if .serviceAccountToken }}
{{- $_ := set $settings "bearerTokenFile" "/var/run/secrets/kubernetes.io/serviceaccount/token" }}
{{- end }}
{{- if .tokenKey }}
{{- $_ := set $settings "bearerTokenFile" "/etc/tangram-prometheus/token" }}
{{- end }}
{{- if .caKey }}
{{- $_ := set $settings "caFile" "/etc/tangram-prometheus/ca.crt" }}
{{- end }}
{{- if .headersKey }}
{{- $_ := set $settings "headersFile" "/etc/tangram-prometheus/headers" }}
{{- end }}
{{- end }}
{{- toJson $settings }}
{{- end }}

{{/* Rules between values of MIG partitions, likewise. */}}
{{- define "tangram.validatePartition" -}}
{{- with .Values.partition }}
{{- if and .migManager.enabled (not .enabled) }}
{{- fail "partition: migManager.enabled needs partition.enabled." }}
{{- end }}
{{- if and .migManager.editClusterPolicy (not .migManager.enabled) }}
{{- fail "partition: migManager.editClusterPolicy needs migManager.enabled." }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the values name and the cluster must have: helm would stop in the middle, or make pods that are refused. Without a
     cluster (helm template, Argo CD) lookup finds nothing, and nothing is checked; nor is it for a person who makes no roles, who
     perhaps may not look. */}}
{{- define "tangram.validateCluster" -}}
{{- if or .Values.rbac.create .Values.agent.enabled }}
{{- if lookup "v1" "Namespace" "" "kube-system" }}
{{- $agent := .Values.agent }}
{{- range .Values.watchNamespaces }}
{{- include "tangram.needNamespace" (dict "root" $ "value" "watchNamespaces" "name" .) }}
{{- end }}
{{- if .Values.networkPolicy.enabled }}
{{- range .Values.networkPolicy.engines.namespaces }}
{{- include "tangram.needNamespace" (dict "root" $ "value" "networkPolicy.engines.namespaces" "name" .) }}
{{- end }}
{{- end }}
{{- with .Values.partition }}
{{- if and .enabled .migManager.enabled $.Values.rbac.create }}
{{- include "tangram.needNamespace" (dict "root" $ "value" "partition.migManager.namespace" "name" .migManager.namespace "has" "mig-manager") }}
{{- end }}
{{- end }}
{{- if $agent.enabled }}
{{- with $agent.namespace }}
{{- include "tangram.needNamespace" (dict "root" $ "value" "agent.namespace" "name" .) }}
{{- end }}
{{- if .Values.rbac.create }}
{{- include "tangram.needNamespace" (dict "root" $ "value" "agent.devicePlugin.namespace" "name" $agent.devicePlugin.namespace "has" "device-plugin") }}
{{- end }}
{{- include "tangram.needRuntimeClass" (dict "value" "agent.runtimeClassName" "name" $agent.runtimeClassName) }}
{{- end }}
{{- include "tangram.needRuntimeClass" (dict "value" "engine.runtimeClassName" "name" .Values.engine.runtimeClassName) }}
{{- end }}
{{- end }}
{{- end }}

{{/* dict "root" $ "value" … "name" … and, where it is that of a component of NVIDIA's, "has" part of its DaemonSet's name. */}}
{{- define "tangram.needNamespace" -}}
{{- if and (ne .name .root.Release.Namespace) (not (lookup "v1" "Namespace" "" .name)) }}
{{- $remedy := printf "kubectl create namespace %s" .name }}
{{- with .has }}
{{- $remedy = printf "set the namespace that NVIDIA's %s runs in (kubectl get daemonsets -A | grep %s), or install the GPU Operator first" . . }}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items }}
{{- if contains $.has .metadata.name }}
{{- $remedy = printf "DaemonSet %s is in namespace %s, so set %s=%s" .metadata.name .metadata.namespace $.value .metadata.namespace }}
{{- end }}
{{- end }}
{{- end }}
{{- fail (printf "%s: the cluster has no namespace %s. Nothing was changed. Remedy: %s." .value .name $remedy) }}
{{- end }}
{{- end }}

{{/* dict "value" … "name" … */}}
{{- define "tangram.needRuntimeClass" -}}
{{- if and .name (not (lookup "node.k8s.io/v1" "RuntimeClass" "" .name)) }}
{{- fail (printf "%s: the cluster has no RuntimeClass %s, so the API server would refuse all pods. Nothing was changed. Remedy: install NVIDIA's GPU Operator first, which creates the RuntimeClass nvidia, or set %s=\"\" where NVIDIA's runtime is the default of the nodes (kubectl get runtimeclasses)." .value .name .value) }}
{{- end }}
{{- end }}

{{/* "true" where there is a webhook. Without a cluster (helm template, Argo CD) lookup finds neither the certificate nor the
     path of the last release, and each rendering would make others: then it needs cert-manager and a path among the values.
     A person who makes no roles perhaps may neither look nor make webhook configurations. */}}
{{- define "tangram.admission" -}}
{{- $keeps := and .Values.admission.certManager.enabled .Values.admission.path }}
{{- if and .Values.admission.enabled .Values.rbac.create }}
{{- if or $keeps (lookup "v1" "Namespace" "" "kube-system") }}
{{- true }}
{{- end }}
{{- end }}
{{- end }}

{{/* The operator's configuration file, validated again by the operator itself (tangram.shell.settings): the sections of the
     values that are its settings, and what the chart knows. JSON writes no number as 1e+06, and null where helm drops it. */}}
{{- define "tangram.config" -}}
engineImage: {{ include "tangram.image" (dict "root" $ "image" .Values.image.engine) | quote }}
engineImagePullPolicy: {{ .Values.image.engine.pullPolicy }}
fetchImage: {{ include "tangram.image" (dict "root" $ "image" .Values.image.fetch) | quote }}
fetchImagePullPolicy: {{ .Values.image.fetch.pullPolicy }}
defaultPriorityClassName: {{ include "tangram.defaultPriorityClassName" . | quote }}
engine: {{ toJson (merge (dict "runAsUser" .Values.engine.runAsUser) .Values.engine) }}
leaderElection: {{ toJson (merge (dict "namespace" .Release.Namespace "name" (include "tangram.fullname" .)) .Values.leaderElection) }}
operator: {{ toJson (omit .Values.operator "runAsUser") }}
{{- if .Values.prometheus.url }}
prometheus: {{ include "tangram.prometheus" . }}
{{- end }}
prometheusRule: {{ toJson (omit .Values.prometheusRule "enabled") }}
{{- if include "tangram.admission" . }}
admission: {certificateFolder: /etc/tangram-admission, predictions: {{ .Values.admission.predictions }}}
{{- end }}
{{- range $section, $values := pick .Values "advice" "models" "partition" "prices" "scaling" "scheduling" "scrape" "watchNamespaces" }}
{{ $section }}: {{ toJson $values }}
{{- end }}
{{- end }}
