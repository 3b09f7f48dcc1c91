import pytest
import torch

from understudy.methods.conditional_generation.losses import Reading, discriminator_loss, joint_loss, lm_loss
from understudy.methods.conditional_generation.states import hide_labels, random_labels


@pytest.fixture
def batch(encoded):
    names = ("input_ids", "attention_mask", "loss_mask", "label", "valid")
    rows = {name: getattr(encoded, name)[:12] for name in names}
    return {**rows, "slot": torch.arange(12), "step": torch.tensor(2)}


def reading(encoded, representation="last", prefix_step=2) -> Reading:
    return Reading(encoded.prompts, prefix_step, representation, seed=0)


def only(batch, row):
    return {name: value if value.ndim == 0 else value[row : row + 1] for name, value in batch.items()}


def test_lm_loss_is_the_mean_over_a_rows_own_text_and_eos(untrained, encoded, batch):
    with torch.no_grad():
        losses = lm_loss(untrained.model, batch, prompts=encoded.prompts)
        for row in range(12):
            real = batch["attention_mask"][row].bool()
            ids = batch["input_ids"][row][real]
            text = int(batch["loss_mask"][row].sum())
            logps = untrained.model.lm(input_ids=ids[None]).logits[0].log_softmax(-1)
            wanted = [-logps[i - 1, ids[i]] for i in range(len(ids) - text, len(ids))]
            expected = torch.stack(wanted).mean() if text else torch.tensor(0.0)
            assert torch.allclose(losses[row], expected, atol=1e-4)
    assert losses[5] == 0  # the null row


@pytest.mark.parametrize("representation", ["last", "mean"])
@pytest.mark.parametrize("prefix_step", [1, 2, 3])
def test_discriminator_loss_by_hand(untrained, encoded, batch, representation, prefix_step):
    read = reading(encoded, representation, prefix_step)
    with torch.no_grad():
        losses = discriminator_loss(untrained.model, batch, reading=read)
        labels = random_labels(encoded.prompts, batch["slot"], step=2, seed=0)
        ids, mask = hide_labels(batch["input_ids"], batch["attention_mask"], prompts=encoded.prompts, labels=labels)
        for row in range(12):
            real = ids[row][mask[row].bool()]
            hidden = untrained.model.lm.base_model(input_ids=real[None]).last_hidden_state[0, encoded.prompts.width :]
            total, weights = 0.0, 0.0
            for weight, end in enumerate(range(prefix_step, len(hidden) + 1, prefix_step), start=1):
                state = hidden[end - 1] if representation == "last" else hidden[:end].mean(0)
                logp = untrained.model.discriminator(state).log_softmax(-1)[batch["label"][row]]
                total, weights = total - weight * float(logp), weights + weight
            expected = total / weights if weights else 0.0
            assert float(losses[row]) == pytest.approx(expected, abs=1e-4)
    assert losses[5] == 0


def test_joint_loss_is_the_weighted_sum(untrained, encoded, batch):
    read = reading(encoded)
    with torch.no_grad():
        joint = joint_loss(untrained.model, batch, reading=read, weight=0.25)
        expected = lm_loss(untrained.model, batch, prompts=encoded.prompts) + 0.25 * discriminator_loss(
            untrained.model, batch, reading=read
        )
    assert torch.allclose(joint, expected)


@pytest.mark.parametrize("name", ["lm", "discriminator", "joint"])
def test_a_rows_loss_depends_on_that_row_only(untrained, encoded, batch, name):
    read = reading(encoded, "mean")
    loss = {
        "lm": lambda b: lm_loss(untrained.model, b, prompts=encoded.prompts),
        "discriminator": lambda b: discriminator_loss(untrained.model, b, reading=read),
        "joint": lambda b: joint_loss(untrained.model, b, reading=read, weight=0.5),
    }[name]
    with torch.no_grad():
        together = loss(batch)
        assert torch.allclose(together, torch.cat([loss(only(batch, row)) for row in range(12)]), atol=1e-5)


def test_the_label_reaches_the_discriminator_as_target_only(untrained, encoded, batch, label_names):
    """Exchanging the label in the prompt, but not the target, changes nothing."""
    width = encoded.prompts.width
    other = {**batch, "input_ids": batch["input_ids"].clone(), "attention_mask": batch["attention_mask"].clone()}
    swapped = (batch["label"] + 1) % len(label_names)
    other["input_ids"][:, :width] = encoded.prompts.input_ids[swapped]
    other["attention_mask"][:, :width] = encoded.prompts.attention_mask[swapped]
    with torch.no_grad():
        losses = discriminator_loss(untrained.model, batch, reading=reading(encoded))
        assert torch.equal(losses, discriminator_loss(untrained.model, other, reading=reading(encoded)))
        lm = lm_loss(untrained.model, batch, prompts=encoded.prompts)
        assert not torch.allclose(lm, lm_loss(untrained.model, other, prompts=encoded.prompts))
