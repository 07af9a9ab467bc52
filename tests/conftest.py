"""What all tests share: checked annotations, hypothesis's profile, one thread."""

import torch
from hypothesis import HealthCheck, Phase, settings
from jaxtyping import install_import_hook

# From here on each call of the package is checked against its annotations, so that one that lies
# fails. It must come before the package is imported.
install_import_hook("transformer_lit", "annotations.check")

settings.register_profile(
    "course",
    derandomize=True,
    deadline=None,
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],  # shrinking a failure can take minutes
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("course")

torch.set_num_threads(1)  # the tensors are small, and the tests may run side by side
