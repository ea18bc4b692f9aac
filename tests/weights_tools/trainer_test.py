"""A faster path that does not compute what the plain one does is dropped, with a message."""

import types

import pytest

from weights_tools import train_family

torch = pytest.importorskip("torch", reason="the trainer needs PyTorch")


def trainer_of(model):
    from weights_tools.trainer import Trainer

    trainer = object.__new__(Trainer)
    trainer.options = types.SimpleNamespace(rows=2, segment=16)
    trainer.processor = types.SimpleNamespace(vocab_size=lambda: 50)
    trainer.device, trainer.model = torch.device("cpu"), model
    return trainer


@pytest.fixture
def model():
    torch.manual_seed(1)
    module = train_family.FAMILIES["gla"][0]
    config = module.config_from_dict(train_family.config_of("gla", 50, 64, 2))
    return train_family.model_class("gla")(config, 0.3)


def test_compiled_blocks_that_agree_are_used(model, monkeypatch):
    def same(block, x, state, rate):
        return block(x, state, rate)

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: same)
    trainer_of(model).quicken()
    assert model.call is same
    assert float(model.rate) == pytest.approx(0.3)
    assert all(p.grad is None for p in model.parameters())


def scaled(block, x, state, rate):
    x, state = block(x, state, rate)
    return 1.1 * x, state


def not_a_number(block, x, state, rate):
    x, state = block(x, state, rate)
    return x * float("nan"), state


def other_gradient(block, x, state, rate):
    x, state = block(x, state, rate)
    return 1.5 * x - (0.5 * x).detach(), state


def failing(block, x, state, rate):
    raise RuntimeError("no compiler here")


@pytest.mark.parametrize("wrong", [scaled, not_a_number, other_gradient, failing])
def test_compiled_blocks_that_do_not_are_dropped(wrong, model, monkeypatch, capsys):
    plain = model.call
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: wrong)
    trainer_of(model).quicken()
    assert model.call is plain
    assert float(model.rate) == pytest.approx(0.3)
    assert all(p.grad is None for p in model.parameters())
    assert torch.backends.cuda.matmul.allow_tf32
    assert "without torch.compile" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kernel, agrees",
    [
        (lambda x, y: (x * y, 0), True),
        (lambda x, y: (1.1 * x * y, 0), False),
        (lambda x, y: (x * y.detach() + y * 0, 0), False),  # another gradient
        (lambda x, y: (x * y * float("nan"), 0), False),
        (lambda x, y: 1 / 0, False),
    ],
)
def test_kernels_are_compared_with_the_plain_form(kernel, agrees, capsys):
    from weights_tools.families.language_model import agree

    inputs = [torch.randn(5).requires_grad_(), torch.randn(5).requires_grad_()]
    assert agree("this", kernel, lambda x, y: (x * y, 1), inputs) is agrees
    assert ("kernel of this is not used" in capsys.readouterr().out) is not agrees


def test_long_texts_are_read_in_sessions():
    import numpy as np

    from weights_tools.trainer import sessions

    ids = np.array([1, 20, 21, 22, 23, 24])
    assert [part.tolist() for part in sessions(ids, 3)] == [[1, 20, 21], [1, 22, 23], [1, 24]]
    assert [part.tolist() for part in sessions(ids, None)] == [ids.tolist()]
