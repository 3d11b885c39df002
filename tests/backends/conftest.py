import pytest


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """These tensors are tiny: threads of several test processes only get in each other's way."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
