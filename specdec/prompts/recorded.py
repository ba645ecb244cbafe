"""The prompts of recorded streams, for target=replay, or for a live target that is compared with the record."""

from specdec.config import typed
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text.streams import Recording, open_recording


@typed
class RecordedPromptsConfig(SetConfig, Recording):
    pass


@prompts.register("recorded")
class RecordedPrompts(PromptSource):
    """Gives one prompt per stream, as literal tokens; repeated prompts and unusable lines are counted and left out."""

    def __init__(self, config: RecordedPromptsConfig) -> None:
        self.config: RecordedPromptsConfig = config

    def read(self) -> SourceContent:
        recorded, name = open_recording(self.config, "prompts"), self.config.name
        entries = [Entry(f"{name}/{each.id}", each.category, tokens=each.prompt) for each in recorded.streams]
        provenance = {"path": str(self.config.path), "sha256": recorded.sha256}
        left_out = {reason: dict(counts) for reason, counts in recorded.left_out.items()}
        return SourceContent(entries, provenance, left_out)
