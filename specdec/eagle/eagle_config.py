"""The typed config of an EAGLE network, in which every published variant is a few values."""

from typing import Annotated, Literal

from pydantic import Field

from specdec.config import AtLeastOne, FolderName, typed


@typed
class RopeScaling:
    """Slower rotation of the rotary embedding, for longer texts than in training: "linear" divides every frequency by
    `factor`; "llama3" only the low ones, and partly those between `low` and `high` turns in `original` positions.
    """

    kind: Literal["linear", "llama3"]
    factor: Annotated[float, Field(ge=1)]
    low: Annotated[float, Field(gt=0)] = 1.0
    high: Annotated[float, Field(gt=0)] = 4.0
    original: AtLeastOne = 8192


@typed
class EagleConfig:
    """The network of a feature drafter: a fusion of the target's features and a few decoder layers.

    Row i reads the feature of position i and the embedding of token i+1, at rotary position i, and predicts token i+2.
    The form "eagle1" reads the state that the target's output layer reads, joined with the embedding by `fc`; "eagle3"
    reads `fc` of several layers' states, and its first layer attends to embedding and feature side by side; "dflash"
    fills a block of mask tokens over `fc` of several layers' states (DFlash and DSpark).
    """

    name: FolderName  # in tables
    form: Literal["eagle1", "eagle3", "dflash"]
    hidden: AtLeastOne
    intermediate: AtLeastOne  # width of the MLP
    heads: AtLeastOne
    kv_heads: AtLeastOne
    head_dim: Annotated[int, Field(ge=2, multiple_of=2)]  # need not be hidden / heads
    layers: Annotated[int, Field(ge=1, le=8)] = 1
    draft_vocabulary: AtLeastOne | None = None  # tokens that can be drafted; None for all of the target's
    boundaries: list[Annotated[int, Field(ge=0)]]  # features are inputs of these blocks of the target; [] in "eagle1"
    target_hidden: AtLeastOne  # width of the target's states
    rope_theta: Annotated[float, Field(gt=0)] = 10000.0  # nothing of the rotary embedding is taken from the target
    rope_scaling: RopeScaling | None = None
    rms_eps: Annotated[float, Field(gt=0)] = 1e-5
    fc_bias: bool = False
    attention_bias: Literal["none", "qkv", "qkvo"] = "none"
    qk_norm: bool = False  # queries and keys are normed for each head, as in Qwen3
    norm_before_residual: bool = False  # the residual of the first layer is the normed feature ("eagle3")
    norm_before_fc: bool = False  # one norm over all features stands before `fc` ("eagle3")
    fc_norm: bool = False  # a norm for each feature stands before `fc` ("eagle3")
    norm_output: bool = False  # the next step reads the normed state (EAGLE-3.1); otherwise only the output does
    own_embedding: bool = False  # otherwise it reads the target's input embeddings
    own_output: bool = True  # otherwise it uses the target's output layer
    # Stands for tokens not drafted yet, where all of a draft come from one pass (P-EAGLE in "eagle3", and "dflash").
    mask_token: Annotated[int, Field(ge=0)] | None = None
    block: Annotated[int, Field(ge=2)] | None = None  # tokens of a block, the root among them ("dflash")
    # Each token of a block gives the law of the one behind it, so that the root's place drafts too ("dflash").
    shifted: bool = False
    # How a Markov head makes its scores of the tokens before, and the width of its embeddings (DSpark, "dflash").
    markov: Literal["vanilla", "gated", "rnn"] | None = None
    markov_rank: AtLeastOne | None = None

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if self.form == "eagle1":
            if self.boundaries:
                raise ValueError("form=eagle1 reads what the target's output layer reads: set boundaries to []")
            if self.hidden != self.target_hidden:
                raise ValueError("form=eagle1 writes the target's states: hidden has to be the target's")
            if self.mask_token is not None:
                raise ValueError("form=eagle1 drafts step by step: set mask_token to null")
        elif not self.boundaries:
            raise ValueError(f"form={self.form} reads layers of the target: give their boundaries, such as [2, 16, 29]")
        norms_of_eagle3 = self.norm_before_residual or self.norm_before_fc or self.fc_norm or self.norm_output
        if norms_of_eagle3 and self.form != "eagle3":
            raise ValueError(f"form={self.form} has none of the norms of eagle3: set them to false")
        if (self.form == "dflash") != (self.block is not None) or (self.block is not None and self.mask_token is None):
            raise ValueError("form=dflash needs block and mask_token, and no other form has a block")
        if self.form != "dflash" and (self.shifted or self.markov):
            raise ValueError(f"form={self.form} has no block: set shifted to false and markov to null")
        if (self.markov is None) != (self.markov_rank is None):
            raise ValueError("markov and markov_rank belong together: give both or neither")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("norm_before_fc and fc_norm exclude each other")
        if not self.own_embedding and self.hidden != self.target_hidden:
            raise ValueError("the target's embeddings have another width than hidden: set own_embedding to true")
        if not self.own_output and self.hidden != self.target_hidden:
            raise ValueError("the target's output layer has another width than hidden: set own_output to true")

    @property
    def features(self) -> int:
        """The number of the target's layers that are read."""
        return len(self.boundaries) or 1

    @property
    def deepest(self) -> int | None:
        """The number of tokens that a block drafts; None for networks that draft step by step."""
        return None if self.block is None else self.block - (not self.shifted)

    def offsets(self, layers: int) -> tuple[int, ...]:
        """Return the layers to keep of a target with `layers` layers, counted down from the last (`HiddenStates`).
        Raises ValueError: a boundary that the target has not, or the un-normed output of its last block.
        """
        if self.form == "eagle1":
            return (0,)
        for boundary in self.boundaries:
            if boundary == layers > 0:
                raise ValueError(
                    f"boundary {boundary} is the output of the target's last block before the final norm, and a target "
                    "gives that state only after the norm"
                )
            if boundary > layers:
                raise ValueError(f"boundary {boundary} is beyond the target's {layers} layers")
        return tuple(layers - boundary for boundary in self.boundaries)
