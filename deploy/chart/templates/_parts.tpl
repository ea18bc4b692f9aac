{{- /* Whether the server serves, as the kubelet may ask; values, scheme. */ -}}
{{- define "recurve.probe" -}}
{{- if .values.tls.clientCa -}}
tcpSocket: {port: metrics}
{{- else -}}
httpGet: {path: /health, port: metrics, scheme: {{ .scheme }}}
{{- end }}
{{- end }}

{{- /* A volume of one replica's: name, of (size, storageClass). */ -}}
{{- define "recurve.claim" -}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: {{ .name }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .of.storageClass }}
    storageClassName: {{ . | quote }}
    {{- end }}
    resources: {requests: {storage: {{ .of.size | quote }}}}
{{- end }}
