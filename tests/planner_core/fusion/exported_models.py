"""Small transformers and a ResNet as people write them in PyTorch, with random weights, exported by ``torch.onnx``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, HEADS, LAYERS = 32, 4, 2


class PlainNorm(nn.Module):
    """LayerNorm written out."""

    def __init__(self, d: int = D) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.rand(d) + 0.5), nn.Parameter(torch.randn(d))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        var = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(var + 1e-12) * self.weight + self.bias


# --- ViT: one packed projection, scaled_dot_product_attention ------------------------------------------


class VitBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D, eps=1e-6), nn.LayerNorm(D, eps=1e-6)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, s, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, s, D)
        x = x + self.proj(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, D, 8, 8)
        self.cls, self.pos = nn.Parameter(torch.randn(1, 1, D)), nn.Parameter(torch.randn(1, 17, D))
        self.blocks = nn.ModuleList(VitBlock() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D, eps=1e-6), nn.Linear(D, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls.expand(x.shape[0], -1, -1), y], 1) + self.pos
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y)[:, 0])


# --- BERT: post-norm, scores divided, additive mask from a padding mask ---------------------------------


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.norm1, self.norm2 = PlainNorm(), PlainNorm()

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], HEADS, D // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / (D // HEADS) ** 0.5 + mask
        y = torch.matmul(scores.softmax(-1), v).permute(0, 2, 1, 3).reshape(x.shape)
        x = self.norm1(self.o(y) + x)
        return self.norm2(self.fc2(F.gelu(self.fc1(x))) + x)


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(50, D), nn.Embedding(16, D)
        self.norm = PlainNorm()
        self.layers = nn.ModuleList(BertLayer() for _ in range(LAYERS))

    def forward(self, ids: Tensor, keep: Tensor) -> Tensor:
        x = self.norm(self.word(ids) + self.place(torch.arange(ids.shape[1])))
        mask = (1.0 - keep[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return x


# --- GPT-2: causal mask from a buffer, tanh GELU written out ---------------------------------------------


class Gpt2Block(nn.Module):
    def __init__(self, context: int = 16) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc1, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).bool()[None, None])

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (t.view(b, s, HEADS, D // HEADS).transpose(1, 2) for t in self.attn(self.norm1(x)).split(D, 2))
        scores = q @ k.transpose(-1, -2) * (D // HEADS) ** -0.5
        scores = torch.where(self.mask[:, :, :s, :s], scores, torch.finfo(scores.dtype).min)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, D)
        x = x + self.proj(y)
        h = self.fc1(self.norm2(x))
        h = 0.5 * h * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * torch.pow(h, 3.0))))
        return x + self.fc2(h)


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(50, D), nn.Embedding(16, D)
        self.blocks = nn.ModuleList(Gpt2Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids) + self.place(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.word.weight.T


# --- LLaMA: RMSNorm in f32, rotate_half, grouped keys, SwiGLU --------------------------------------------


class Rms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(D) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.to(torch.float32)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * h.to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


class LlamaBlock(nn.Module):
    def __init__(self, sdpa: bool) -> None:
        super().__init__()
        self.sdpa, self.kv, d = sdpa, HEADS // 2, D // HEADS
        self.norm1, self.norm2 = Rms(), Rms()
        self.q, self.o = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
        self.k, self.v = nn.Linear(D, self.kv * d, bias=False), nn.Linear(D, self.kv * d, bias=False)
        self.gate, self.up = nn.Linear(D, 2 * D, bias=False), nn.Linear(D, 2 * D, bias=False)
        self.down = nn.Linear(2 * D, D, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        b, s, _ = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(b, s, -1, D // HEADS).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = (t[:, :, None].expand(b, self.kv, HEADS // self.kv, s, D // HEADS).reshape(b, HEADS, s, D // HEADS)
                for t in (k, v))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.matmul(q, k.transpose(2, 3)) * (D // HEADS) ** -0.5 + mask
            y = torch.matmul(F.softmax(scores, -1, dtype=torch.float32).to(q.dtype), v)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, D))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    def __init__(self, sdpa: bool = False) -> None:
        super().__init__()
        self.word = nn.Embedding(50, D)
        self.blocks = nn.ModuleList(LlamaBlock(sdpa) for _ in range(LAYERS))
        self.norm, self.head = Rms(), nn.Linear(D, 50, bias=False)
        d = D // HEADS
        self.register_buffer("freq", 10000.0 ** -(torch.arange(0, d, 2).float() / d))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids)
        s = ids.shape[1]
        angle = torch.arange(s)[:, None].float() * self.freq[None]
        angle = torch.cat((angle, angle), -1)
        mask = torch.full((s, s), torch.finfo(x.dtype).min).triu(1)
        for block in self.blocks:
            x = block(x, angle.cos()[None, None], angle.sin()[None, None], mask)
        return self.head(self.norm(x))


# --- ResNet ---------------------------------------------------------------------------------------------


class ResBlock(nn.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if a != b else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.down(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(ResBlock(8, 8, 1), ResBlock(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = F.max_pool2d(F.relu(self.bn(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(y).mean((2, 3)))


def _encoder() -> nn.Module:
    """PyTorch's own encoder: projections packed, rows before the batch inside."""
    layer = nn.TransformerEncoderLayer(D, HEADS, 2 * D, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)


def _ids() -> Tensor:
    return torch.randint(0, 50, (2, 7))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "vit": (Vit, lambda: (torch.randn(2, 3, 32, 32),)),
    "resnet": (ResNet, lambda: (torch.randn(1, 3, 32, 32),)),
    "bert": (Bert, lambda: (_ids(), torch.ones(2, 7, dtype=torch.int64))),
    "gpt2": (Gpt2, lambda: (_ids(),)),
    "llama": (Llama, lambda: (_ids(),)),
    "llama-sdpa": (lambda: Llama(sdpa=True), lambda: (_ids(),)),
    "encoder": (_encoder, lambda: (torch.randn(2, 7, D),)),
}


def export(name: str, folder: Path) -> Path:
    """The model's ONNX file."""
    torch.manual_seed(0)
    make, feed = MODELS[name]
    path = folder / f"{name}.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(make().eval(), feed(), path, dynamo=True, external_data=False, verbose=False)
    return path
