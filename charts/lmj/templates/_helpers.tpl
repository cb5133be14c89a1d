{{- define "lmj.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "lmj.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "lmj.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "lmj.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What cluster-scoped objects are called: two releases in two namespaces may have one name. */}}
{{- define "lmj.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "lmj.fullname" .) | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "lmj.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "lmj.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The Secret with the keys that the operator signs with. */}}
{{- define "lmj.agentKeys" -}}
{{- default (printf "%s-agent-keys" (include "lmj.fullname" .)) .Values.agentKeys.secretName }}
{{- end }}

{{/*
name and component are fixed, whatever the release is called: a job's NetworkPolicy knows the operator's pods by these two.
*/}}
{{- define "lmj.selectorLabels" -}}
app.kubernetes.io/name: lmj
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lmj.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "lmj.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: lmj
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Of an image in the values: (dict "image" .Values.image "root" .). */}}
{{- define "lmj.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) }}
{{- end }}
{{- end }}

{{- define "lmj.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "lmj.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
