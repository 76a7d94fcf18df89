"""What every endpoint shares: who asks is found out, and the state is handed over.

Seam: `guard` (the whole app's dependency), `may_use_models`, `StateOf`, `CallerOf`.
"""
