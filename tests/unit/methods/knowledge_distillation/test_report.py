"""What the report says of losses, whichever of the models is the best."""

import pytest

from understudy.evaluation.metrics import Metrics
from understudy.methods.knowledge_distillation.metric_names import METRIC_NAMES
from understudy.methods.knowledge_distillation.report import response_section, sections
from understudy.reporting.report import build_report
from understudy.reporting.text_formatting import MINUS


@pytest.mark.parametrize(("control", "alone"), [(6.171, "+0.311"), (5.5, "−0.360")])
def test_what_private_pairs_and_the_professional_model_add_are_told_apart(control, alone):
    """With a control that is worse than the base model, no part of the gain was left for the professional model."""
    losses = {"base": 5.86, "public_only": control, "dp_only": 5.441, "target": 5.679}
    values = {f"responses.{name}.loss": loss for name, loss in losses.items()}
    values |= {f"responses.target_minus_{name}.loss": 5.679 - loss for name, loss in losses.items() if name != "target"}
    section = response_section(Metrics(values=values, declared=METRIC_NAMES))
    said = " ".join(section.lead)
    added = f"{5.679 - control:+.3f}".replace("-", "−")
    assert f"The difference, {added}, is what the private pairs add." in said
    assert f"From the base model's 5.860 to that, {alone}, is what the professional model adds without them." in said
    assert "rest of the gain" not in said
    assert "-" not in said.replace("Held-out", "").replace("held-out", "")
    assert "The DP model" in [row[0] for row in section.table.rows]


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (-0.2, -0.1, "The private rows helped: "),
        (-0.1, 0.1, "No difference from the same steps without private pairs could be measured: "),
    ],
)
def test_the_page_opens_with_what_the_private_pairs_add(low, high, said, tmp_path):
    losses = {"base": 5.86, "public_only": 5.1 - (low + high) / 2, "dp_only": 5.441, "target": 5.1}
    values = {f"responses.{name}.loss": loss for name, loss in losses.items()}
    values |= {f"responses.target_minus_{name}.loss": 5.1 - loss for name, loss in losses.items() if name != "target"}
    intervals = {"responses.target_minus_public_only.loss": (low, high)}
    metrics = Metrics(values=values, intervals=intervals, declared=METRIC_NAMES)
    page = build_report(tmp_path, title="T", metrics=metrics, statement={}, sections=sections).html.read_text()
    difference = f"{(low + high) / 2:+.3f} beside the model distilled without private pairs ({low:+.3f} to {high:+.3f})"
    assert (
        f"{said}the mean loss of held-out responses under the distilled model is 5.100 nats per token, "
        f"{difference.replace('-', MINUS)}."
    ) in page
