{{/* Names. Suffixes of ours are at most 21 characters, so that all stay within 63. */}}
{{- define "fluxqueue.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of one part; never changes over the life of a release. Takes root, part. */}}
{{- define "fluxqueue.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{/* Labels of every object. Takes root, part. */}}
{{- define "fluxqueue.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: fluxqueue
{{ include "fluxqueue.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods, without versions: a new chart alone restarts nothing. Ours are never gated, whatever
namespace they are put into. Takes root, part, values. */}}
{{- define "fluxqueue.podLabels" -}}
{{- with .values }}{{- with .podLabels }}
{{- toYaml . }}
{{ end }}{{- end -}}
{{ include "fluxqueue.selector" . }}
app.kubernetes.io/part-of: fluxqueue
fluxqueue/managed: "false"
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* An image by digest or tag. Takes registry, repository, tag, digest. */}}
{{- define "fluxqueue.imageOf" -}}
{{- $name := printf "%s/%s" .registry .repository -}}
{{- if .digest -}}
{{- printf "%s@%s" $name .digest -}}
{{- else -}}
{{- printf "%s:%s" $name .tag -}}
{{- end -}}
{{- end -}}

{{- define "fluxqueue.image" -}}
{{- $i := .Values.image -}}
{{- include "fluxqueue.imageOf" (dict "registry" $i.registry "repository" $i.repository "tag" (default .Chart.AppVersion $i.tag) "digest" $i.digest) -}}
{{- end -}}

{{- define "fluxqueue.webhookImage" -}}
{{- $i := .Values.webhook.image -}}
{{- include "fluxqueue.imageOf" (dict "registry" .Values.image.registry "repository" $i.repository "tag" (default .Chart.AppVersion $i.tag) "digest" $i.digest) -}}
{{- end -}}

{{- define "fluxqueue.isOpenshift" -}}
{{- if or (eq .Values.openshift "yes") (and (eq .Values.openshift "auto") (.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}true{{- end -}}
{{- end -}}

{{/* Takes root, user, group. Where constraints of the cluster choose the identity, none is asked for. */}}
{{- define "fluxqueue.podSecurityContext" -}}
runAsNonRoot: true
{{- if not (include "fluxqueue.isOpenshift" .root) }}
runAsUser: {{ .user }}
runAsGroup: {{ .group }}
fsGroup: {{ .group }}
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "fluxqueue.ownSecurityContext" -}}
{{- include "fluxqueue.podSecurityContext" (dict "root" . "user" .Values.security.runAsUser "group" .Values.security.runAsGroup) -}}
{{- end -}}

{{- define "fluxqueue.containerSecurityContext" -}}
runAsNonRoot: true
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* Where pods may run. Takes root, part, values. */}}
{{- define "fluxqueue.placement" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range .values.topologySpreadConstraints }}
  - labelSelector:
      matchLabels:
        {{- include "fluxqueue.selector" $ | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "fluxqueue.databaseSecret" -}}
{{- if .Values.postgres.enabled -}}
{{- default (printf "%s-postgres" (include "fluxqueue.fullname" .)) .Values.postgres.existingSecret -}}
{{- else -}}
{{- required "postgres.enabled is false: name the Secret of your database in externalDatabase.existingSecret" .Values.externalDatabase.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* How to reach the database. The password never stands in an object other than its Secret: libpq reads
PGPASSWORD where the URL has none, so it needs no escaping either. */}}
{{- define "fluxqueue.databaseEnv" -}}
{{- $secret := include "fluxqueue.databaseSecret" . -}}
{{- $external := .Values.externalDatabase -}}
{{- if .Values.postgres.enabled -}}
- name: DATABASE_URL
  value: postgresql://fluxqueue@{{ include "fluxqueue.fullname" . }}-postgres.{{ .Release.Namespace }}.svc:5432/fluxqueue
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: password}
{{- else }}
{{- if $external.urlKey -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: {{ $external.urlKey }}}
{{- else -}}
- name: DATABASE_URL
  value: postgresql://{{ $external.user }}@{{ required "postgres.enabled is false: give externalDatabase.host (or urlKey)" $external.host }}:{{ $external.port }}/{{ $external.name }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ $secret }}, key: {{ $external.passwordKey }}}
{{- end }}
- name: PGSSLMODE
  value: {{ $external.sslmode }}
{{- if $external.caKey }}
- name: PGSSLROOTCERT
  value: /etc/fluxqueue/database/ca.crt
{{- else if hasPrefix "verify-" $external.sslmode }}
{{- fail (printf "externalDatabase.sslmode is %s: name the key of the CA certificate in externalDatabase.caKey" $external.sslmode) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The same for the view server, which may have a login of its own that can do nothing but read. */}}
{{- define "fluxqueue.viewDatabaseEnv" -}}
{{- if .Values.view.databaseSecret -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.view.databaseSecret }}, key: url}
{{- if not .Values.postgres.enabled }}
- name: PGSSLMODE
  value: {{ .Values.externalDatabase.sslmode }}
{{- if .Values.externalDatabase.caKey }}
- name: PGSSLROOTCERT
  value: /etc/fluxqueue/database/ca.crt
{{- end }}
{{- end }}
{{- else -}}
{{- include "fluxqueue.databaseEnv" . -}}
{{- end -}}
{{- end -}}

{{- define "fluxqueue.hasDatabaseCa" -}}
{{- if and (not .Values.postgres.enabled) .Values.externalDatabase.caKey -}}true{{- end -}}
{{- end -}}

{{/* Settings of controller, worker and migrations. toJson, because a large number would become 2.6e+06. */}}
{{- define "fluxqueue.settingsEnv" -}}
- name: FLUXQUEUE_NAMESPACE
  valueFrom:
    fieldRef: {fieldPath: metadata.namespace}
{{- range $name, $value := .Values.settings }}
- name: {{ $name }}
  value: {{ $value | toJson | trimAll "\"" | quote }}
{{- end }}
{{- include "fluxqueue.ownerKindsEnv" . }}
{{- include "fluxqueue.aliasesEnv" . }}
{{- end -}}

{{/* What resumes an object that is created suspended with Kueue's label. Kueue itself does, where it is installed. */}}
{{- define "fluxqueue.kueueSuspension" -}}
{{- $has := or (.Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta2") (.Capabilities.APIVersions.Has "kueue.x-k8s.io/v1beta1") -}}
{{- if eq .Values.kueueSuspension "auto" }}{{ ternary "author" "queue" $has }}{{ else }}{{ .Values.kueueSuspension }}{{ end -}}
{{- end -}}

{{/* Keys of other systems, and the FluxQueues of their queues, for workers and webhook. */}}
{{- define "fluxqueue.aliasesEnv" -}}
{{- $queues := list -}}
{{- range $name, $queue := .Values.queueNames }}{{ $queues = append $queues (printf "%s=%s" $name $queue) }}{{ end }}
- name: FLUXQUEUE_ALIASES
  value: {{ .Values.aliases | join "," | default "none" | quote }}
{{- with $queues }}
- name: FLUXQUEUE_QUEUE_NAMES
  value: {{ join "," . | quote }}
{{- end }}
{{- end -}}

{{/* The aliases of one of our keys, as a JSON list. Give root, ours (queue, pod-group) and kueue, its name there. */}}
{{- define "fluxqueue.aliasesOf" -}}
{{- $found := list -}}
{{- range .root.Values.aliases -}}
{{- $parts := splitn "=" 2 . -}}
{{- if eq . "kueue" -}}{{- $found = append $found $.kueue -}}
{{- else if eq (trimPrefix "fluxqueue/" $parts._1) $.ours -}}{{- $found = append $found $parts._0 -}}{{- end -}}
{{- end -}}
{{- $found | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- define "fluxqueue.ownerKindsEnv" -}}
{{- with .Values.ownerKinds }}
- name: FLUXQUEUE_OWNER_KINDS
  value: {{ toJson . | quote }}
{{- end }}
{{- end -}}

{{/* Volume mounts and volumes of our own containers. */}}
{{- define "fluxqueue.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if include "fluxqueue.hasDatabaseCa" . }}
- name: database-ca
  mountPath: /etc/fluxqueue/database
  readOnly: true
{{- end }}
{{- end -}}

{{- define "fluxqueue.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if include "fluxqueue.hasDatabaseCa" . }}
- name: database-ca
  secret:
    secretName: {{ include "fluxqueue.databaseSecret" . }}
    items:
      - {key: {{ .Values.externalDatabase.caKey }}, path: ca.crt}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* The init container that migrates. Any number may start at once: one migrates under an advisory lock, the
others wait. --pre: old replicas still run beside the new one, so what would break them is left for the next release
(migrations/README.md). In an init container, not in a hook: at the first installation a hook before everything
would wait for a Postgres that comes after it, and a hook after everything for parts that wait for it. */}}
{{- define "fluxqueue.migration" -}}
- name: migrate
  image: {{ include "fluxqueue.image" . }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [fluxqueue, db, upgrade, --pre]
  env:
    {{- include "fluxqueue.databaseEnv" . | nindent 4 }}
    {{- include "fluxqueue.settingsEnv" . | nindent 4 }}
  securityContext:
    {{- include "fluxqueue.containerSecurityContext" . | nindent 4 }}
  resources:
    requests: {cpu: 50m, memory: 128Mi}
    limits: {cpu: "1", memory: 512Mi}
  volumeMounts:
    {{- include "fluxqueue.mounts" . | nindent 4 }}
{{- end -}}

{{- define "fluxqueue.certificateSecret" -}}
{{ include "fluxqueue.fullname" . }}-webhook-certificate
{{- end -}}

{{/* The key that worker and webhook share: which pods are placed at their creation. */}}
{{- define "fluxqueue.placementSecret" -}}
{{- default (printf "%s-placement-key" (include "fluxqueue.fullname" .)) .Values.placementKey.existingSecret -}}
{{- end -}}

{{- define "fluxqueue.placementMount" -}}
- name: placement-key
  mountPath: /etc/fluxqueue/placement
  readOnly: true
{{- end -}}

{{- define "fluxqueue.placementVolume" -}}
- name: placement-key
  secret:
    secretName: {{ include "fluxqueue.placementSecret" . }}
    # Without it, pods of Indexed Jobs are ungated one by one.
    optional: true
    items:
      - {key: key, path: key}
    defaultMode: 0440
{{- end -}}

{{/* The namespaces that are managed, as expressions of a selector: where the webhook is asked of workloads. */}}
{{- define "fluxqueue.managedNamespaces" -}}
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{ list "kube-node-lease" "kube-public" "kube-system" .Release.Namespace | uniq | sortAlpha | toJson }}
{{- if eq .Values.webhook.namespaces "optIn" }}
- {key: fluxqueue/managed, operator: In, values: ["true"]}
{{- else }}
- {key: fluxqueue/managed, operator: NotIn, values: ["false"]}
{{- end }}
{{- end -}}

{{/* Who may let queued work go, as user names for expressions. */}}
{{- define "fluxqueue.ownUsers" -}}
{{- $root := . -}}
{{- range $part := list "controller" "worker" "uninstall" }}
- system:serviceaccount:{{ $root.Release.Namespace }}:{{ include "fluxqueue.fullname" $root }}-{{ $part }}
{{- end }}
{{- with .Values.gatePolicy.exemptUsers }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Probes of controller and worker. Liveness is about the process alone: a database that is away makes a
part unready, and restarting it would help nobody. */}}
{{- define "fluxqueue.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: probes}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: probes}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: probes}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{/* Pod template of a hook: one container of ours, no database. Takes root, account, command. */}}
{{- define "fluxqueue.hookPod" -}}
{{- $values := .root.Values.controller -}}
metadata:
  labels:
    {{- include "fluxqueue.podLabels" (dict "root" .root "part" "hook") | nindent 4 }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ .account }}
  automountServiceAccountToken: true
  enableServiceLinks: false
  securityContext:
    {{- include "fluxqueue.ownSecurityContext" .root | nindent 4 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: hook
      image: {{ include "fluxqueue.image" .root }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: {{ toJson .command }}
      env:
        {{- include "fluxqueue.settingsEnv" .root | nindent 8 }}
      securityContext:
        {{- include "fluxqueue.containerSecurityContext" .root | nindent 8 }}
      resources:
        requests: {cpu: 50m, memory: 128Mi}
        limits: {cpu: "1", memory: 512Mi}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
  volumes:
    - name: tmp
      emptyDir: {sizeLimit: 64Mi}
{{- end -}}
