"""Which sequences run in the next step, with how many tokens, in which KV blocks; and what a step's tokens mean.

Handles numbers only: it never imports the runner, and knows no feature by name. Seam: `Scheduler.schedule` makes a
`StepPlan`, `Scheduler.commit` takes its result.
"""
