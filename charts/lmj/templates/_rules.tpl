{{/*
What the operator calls, and nothing else; a test compares these lists with the calls in its code. There are no Secrets among
them: its own are mounted, and a job's are for its pods.
*/}}

{{/* In each namespace whose jobs it runs. Server-side apply is a patch, which makes what is not there: it needs create too. */}}
{{- define "lmj.rules.namespaced" -}}
- apiGroups: [lmj.dev]
  resources: [livemigrationjobs]
  verbs: [get, list, watch, delete]
- apiGroups: [lmj.dev]
  resources: [livemigrationjobs/status]
  verbs: [patch]
- apiGroups: [lmj.dev]
  # Not a call: where owner references are checked (OpenShift), children that block their job's deletion take it.
  resources: [livemigrationjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, create]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
{{- end }}

{{/* In the whole cluster, for these have no namespace. */}}
{{- define "lmj.rules.cluster" -}}
- apiGroups: [""]
  # A node that is gone takes its ranks with it.
  resources: [nodes]
  verbs: [list, watch]
{{- end }}
