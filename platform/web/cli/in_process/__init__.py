"""The admin API in this process, over the data folder, for words where no server runs. It knows no word; its seam is
`local_client`. It starts no engine, no background work and no web server."""
