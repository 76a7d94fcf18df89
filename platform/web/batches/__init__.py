"""Files and batches over HTTP (/v1/files, /v1/batches), and the runner that sends each line to the server itself.

Knows no endpoint from inside: a line takes the way of every request, on behalf of its batch's maker. Seam: `routers`,
`BatchRunner`, `ENDPOINTS`.
"""
