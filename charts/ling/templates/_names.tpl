{{/* Labels of the chart's objects. They never go on a pod template: a new chart must not restart anything by itself. */}}
{{- define "ling.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: ling
{{ include "ling.podLabels" . }}
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of a pod template: these never change. */}}
{{- define "ling.podLabels" -}}
app.kubernetes.io/name: ling
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
ling.dev/component: {{ .component }}
{{- end }}

{{/* An image: the component's own repository, tag and digest, else the chart's. */}}
{{- define "ling.image" -}}
{{- $own := .own | default dict -}}
{{- $name := $own.repository | default (printf "%s/ling-%s" .root.Values.image.registry .name) -}}
{{- if $own.digest -}}
{{ $name }}@{{ $own.digest }}
{{- else -}}
{{ $name }}:{{ $own.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "ling.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:ling-operator
{{- end }}

{{- define "ling.agentUser" -}}
system:serviceaccount:{{ .Values.agent.namespace }}:ling-agent
{{- end }}

{{/* Probes of operator and agent: on a node that is out of breath a new start only makes it worse. */}}
{{- define "ling.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 180
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: 6
{{- end }}

{{- define "ling.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "ling.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}
