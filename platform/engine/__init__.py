"""FairExecutor token ids into token ids: scheduler, paged KV cache, models, and the process they run in."""
