"""A tiny student and rows of random tokens."""

import torch
from random_models import random_model

from understudy.methods.trajectory_matching.student import Rows, Student

VOCABULARY = 40


def random_rows(count: int, *, width: int = 10, seed: int = 0) -> Rows:
    """Rows of several lengths, the last three tokens of each a response."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (count, width), generator=generator)
    lengths = torch.randint(width - 3, width + 1, (count,), generator=generator)
    place = torch.arange(width)
    attention = (place < lengths[:, None]).long()
    return Rows(ids, attention, (place < lengths[:, None]) & (place >= lengths[:, None] - 3))


def moved_weights(student: Student, *, seed: int, scale: float = 0.05) -> dict[str, torch.Tensor]:
    """The student's first weights with noise on top, so that no adapter is zero."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + scale * torch.randn(value.shape, generator=generator) for name, value in student.start.items()
    }


def random_student(family: str = "llama", *, seed: int = 0) -> Student:
    """Two layers of width 16, adapters of rank 2."""
    model = random_model(family, vocabulary=VOCABULARY, width=16, positions=32, heads=2)
    return Student(model, rank=2, alpha=4.0, seed=seed)
