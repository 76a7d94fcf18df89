"""A request's way in one line: resolve -> render -> spec -> generate -> format. Quotas, routing and usage wrap it here.

Knows no API format. Seam: an endpoint writes a `Call` (render and spec) and a `Format`, and hands the call to `answer`.
"""
