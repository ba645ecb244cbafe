"""The prompts of recorded streams, for target=replay, or for a live target that is compared with the record."""

from specdec.config import typed
from specdec.prompts.base.contract import Entry, PromptSource, SetConfig, SourceContent, prompts
from specdec.text.streams import Recording, open_recording


@prompts.register("recorded")
@typed
class RecordedPrompts(PromptSource, SetConfig, Recording):
    """Gives one prompt per stream, as literal tokens; repeated prompts and unusable lines are counted and left out."""

    def read(self) -> SourceContent:
        recorded = open_recording(self, "prompts")
        entries = [Entry(f"{self.name}/{each.id}", each.category, tokens=each.prompt) for each in recorded.streams]
        provenance = {"path": str(self.path), "sha256": recorded.sha256}
        left_out = {reason: dict(counts) for reason, counts in recorded.left_out.items()}
        return SourceContent(entries, provenance, left_out)
