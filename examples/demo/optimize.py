"""The training loop that base and adapters share."""

import math
from collections.abc import Iterable
from itertools import islice

import torch
from rich.progress import Progress
from torch import Tensor, nn

WARMUP = 0.05
"""Share of the steps in which the learning rate rises."""


def optimize(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    steps: int,
    learning_rate: float,
    progress: Progress,
    title: str,
) -> None:
    """AdamW over `steps` batches of (token ids, labels); ends with a line of the mean loss of the last tenth."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _scale(step, steps))
    task, losses = progress.add_task(title, total=steps, loss=math.nan), list[float]()
    model.train()
    for tokens, labels in islice(batches, steps):
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
        progress.update(task, advance=1, loss=losses[-1])
    tail = losses[-max(1, steps // 10) :]
    progress.print(f"{title}: {steps} steps, loss {sum(tail) / len(tail):.3f}")


def _scale(step: int, steps: int) -> float:
    """Linear rise, then a cosine down to a twentieth."""
    rise = max(1, int(steps * WARMUP))
    if step < rise:
        return (step + 1) / rise
    return 0.05 + 0.95 * (1 + math.cos(math.pi * (step - rise) / max(1, steps - rise))) / 2
