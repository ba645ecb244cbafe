"""What a call, a draft and the machine cost, measured apart from decoding."""
