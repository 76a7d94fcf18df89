"""Files of tenants over HTTP (/v1/files), for batches. Seam: `routers`."""
