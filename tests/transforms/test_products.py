import pytest
import torch
from torch.nn import functional

from lathe.transforms import products
from lathe.transforms.products import MIN_ONEDNN_ROWS, multiply_rows


@pytest.fixture
def calls(monkeypatch):
    """Prefer oneDNN, as on a processor of AMD, and return the shapes of what it multiplies."""
    shapes, multiply = [], torch.ops.mkldnn._linear_pointwise

    def record(x, weight, *more):
        shapes.append((tuple(x.shape), tuple(weight.shape)))
        return multiply(x, weight, *more)

    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", record)
    return shapes


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("rows", "onednn"), [(1, False), (MIN_ONEDNN_ROWS - 1, False), (MIN_ONEDNN_ROWS, True), (300, True)]
)
def test_many_rows_are_multiplied_by_onednn_with_the_same_result(calls, rows, onednn, bias):
    torch.manual_seed(0)
    x, weight, offset = torch.randn(rows, 40), torch.randn(24, 40), torch.randn(24) if bias else None
    found = multiply_rows(x, weight, offset)
    torch.testing.assert_close(found, functional.linear(x, weight, offset), rtol=0, atol=1e-5)
    assert calls == ([((rows, 40), (24, 40))] if onednn else [])


def test_rows_that_are_a_view_are_multiplied_as_they_are(calls):
    x, weight = torch.randn(80, MIN_ONEDNN_ROWS).T, torch.randn(160, 80)[::2]
    torch.testing.assert_close(multiply_rows(x, weight), functional.linear(x, weight), rtol=0, atol=1e-5)
    assert len(calls) == 1


def test_what_onednn_cannot_do_or_record_goes_to_pytorch(calls, monkeypatch):
    x, weight = torch.randn(MIN_ONEDNN_ROWS, 8), torch.randn(4, 8)
    assert multiply_rows(x.double(), weight.double()).dtype == torch.float64
    multiply_rows(torch.randn(2, MIN_ONEDNN_ROWS, 8), weight)
    multiply_rows(x.to("meta"), weight.to("meta"))
    learned = x.requires_grad_()
    multiply_rows(learned, weight).sum().backward()
    torch.testing.assert_close(learned.grad, weight.sum(dim=0).expand(MIN_ONEDNN_ROWS, 8))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    multiply_rows(x.detach(), weight)
    assert calls == []


def test_other_processors_use_pytorch(monkeypatch):
    monkeypatch.setattr(products, "is_amd", lambda: False)
    products.prefers_onednn.cache_clear()
    assert not products.prefers_onednn()
    products.prefers_onednn.cache_clear()
