"""The typed config of a set of heads, in which every variant of the literature is a few values."""

from typing import Annotated, Literal

from pydantic import Field

from specdec.config import AtLeastOne, NonEmpty, typed


@typed
class HeadsConfig:
    """K heads over h_t, the state of the last token that the target has evaluated; head k predicts x_{t+k+1}."""

    name: NonEmpty  # in tables
    count: AtLeastOne  # K
    grounded: bool  # head k also reads the input embeddings of x_{t+1}, ..., x_{t+k}
    # Residual SiLU layers; "attention": what they read of the tokens is a causal self-attention layer over h_t and the
    # embeddings; "gru": a recurrence over the embeddings that begins with h_t. The last two are for grounded heads.
    mixer: Literal["mlp", "attention", "gru"]
    layers: Annotated[int, Field(ge=1, le=8)]  # residual ones of a head, or those of the GRU
    width: AtLeastOne | None  # inside a residual layer; None is the target's hidden size, which needs no second matrix
    state: Literal["hidden", "embeddings"]  # embeddings: h_t is that of x_t, to see what the states are worth
    offset: Annotated[int, Field(ge=0)]  # layer of h_t, counted down from the last; 0 is what the output head reads
    prefix: bool  # a causal self-attention layer over the states of the prefix stands before the heads (Hydra++)
    output: Literal["own", "shared", "tied"]  # layer to the vocabulary: of each head, of all heads, or the target's own

    def offset_of(self, layers: int) -> int:
        """Return the layer whose states these heads read, counted down from the last of `layers`."""
        return layers if self.state == "embeddings" else self.offset

    def __post_init__(self) -> None:
        if self.mixer != "mlp" and not self.grounded:
            name = "a GRU" if self.mixer == "gru" else "attention over drafted tokens"
            raise ValueError(f"{name} reads the drafted tokens: it needs grounded=true")
        if self.mixer == "gru" and self.width is not None:
            raise ValueError("a GRU begins with h_t, so its width is the target's: set width to null")
        if self.state == "embeddings" and self.offset:
            raise ValueError("state=embeddings has no layer: set offset to 0")
