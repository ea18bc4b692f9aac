"""The training loop of weights_tools.train, its evaluation and its samples."""

import copy
import math
import time

import numpy as np
import torch
from torch.nn import functional as F

from weights_tools import batches, tokenizer
from weights_tools.families.language_model import call_block

PROMPTS = ("", "The old man looked up from the fire, and")
SAMPLE_TOKENS = 220


class Trainer:
    """model: a LanguageModel. longest: tokens of a session that it takes; none: all."""

    def __init__(self, options, model, processor, books, longest=None):
        self.options, self.processor, self.books, self.longest = options, processor, books, longest
        self.device = torch.device(options.device)
        torch.backends.cuda.matmul.allow_tf32 = True
        self.rng = np.random.default_rng(options.seed)
        self.model = model.to(self.device)
        self.average = copy.deepcopy(self.model).eval().requires_grad_(False)
        self.stream = tokenizer.training_stream(processor, books)
        self.segments = len(self.stream) // options.rows // options.segment
        self.steps = max(1, int(options.epochs * self.segments))
        self.optimizer = make_optimizer(self.model, options)
        self.curve = []
        if self.device.type == "cuda":
            self.model.check_kernels()
        if not options.no_compile:
            self.quicken()

    def quicken(self):
        """Blocks compiled, one compilation a kind of block, if they compute what they did before: the
        same gradients in fp32, and the same loss with products in bf16, whose rounding alone can turn
        the gradients of a fresh GLA about."""
        wanted = self.gradients(narrow=False)
        self.model.call = torch.compile(call_block, dynamic=False)
        try:
            problem = difference(self.gradients(narrow=False), wanted, 0.01)
            problem = problem or difference(self.gradients(narrow=True), wanted, math.inf)
        except Exception as error:  # any failure of the compiler: the model as it is is as good
            problem = str(error)[:300]
        if problem:
            print(f"going on without torch.compile: {problem}", flush=True)
            self.model.call = call_block

    def gradients(self, narrow):
        """-> loss, all gradients as one vector, on some tokens, without dropout; narrow: as in training,
        else all in fp32."""
        options, rate = self.options, self.model.rate.clone()
        shape = (options.rows, options.segment + 1)
        tokens = torch.arange(math.prod(shape), device=self.device).reshape(shape) * 7919
        tokens %= self.processor.vocab_size()
        self.model.train().rate.zero_()
        state = self.model.zero_state(options.rows)
        torch.backends.cuda.matmul.allow_tf32 = narrow
        try:
            loss, _ = segment_loss(self.model, tokens, state, narrow)
            loss.backward()
            found = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        finally:
            torch.backends.cuda.matmul.allow_tf32 = True
            self.model.zero_grad(set_to_none=True)
            self.model.rate.copy_(rate)
        return float(loss.detach()), found

    def run(self):
        """-> curve, held_out bits per byte, samples, weights (fp32, exact in bf16)."""
        begin, step = time.time(), 0
        losses = []
        while self.progress(step, begin) < 1:
            for tokens, fresh in self.epoch():
                progress = self.progress(step, begin)
                if progress >= 1:
                    break
                losses.append(self.train_step(tokens, fresh, step, progress))
                step += 1
                if step % max(1, int(self.options.evaluate_every * self.segments)) == 0:
                    self.report(step, begin, losses)
                    losses = []
        if losses:
            self.report(step, begin, losses)
        rounded = self.rounded()
        torch.backends.cuda.matmul.allow_tf32 = False
        return {
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "steps": step,
            "epochs": round(step / self.segments, 2),
            "tokens_per_step": self.options.rows * self.options.segment,
            "training_tokens": len(self.stream),
            "seconds": round(time.time() - begin, 1),
            "torch": torch.__version__,
            "device": device_name(self.device),
            "curve": self.curve,
            "held_out": self.held_out(rounded),
            "samples": [self.sample(rounded, prompt) for prompt in PROMPTS],
            "weights": {n: p.detach().cpu() for n, p in rounded.state_dict().items()},
        }

    def progress(self, step, begin):
        limit = self.options.max_minutes
        passed = (time.time() - begin) / (60 * limit) if limit else 0
        return max(step / self.steps, passed)

    def epoch(self):
        """Yields ids [rows, segment + 1] and which rows start afresh."""
        options, newline = self.options, self.processor.piece_to_id("\n")
        shape = (options.rows, options.segment)
        rows = batches.Rows(self.stream, *shape, newline, tokenizer.BOS, self.rng)
        for s in range(self.segments):
            fresh = self.rng.random(options.rows) < (options.reset if s else 1)
            yield self.sent(rows.next(fresh)), self.sent(fresh)

    def sent(self, array):
        """On the device, without waiting for what it is doing."""
        tensor = torch.from_numpy(array)
        if self.device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=True)

    def train_step(self, tokens, fresh, step, progress):
        options = self.options
        if step == 0 or options.reset >= 1:
            self.state = self.model.zero_state(options.rows)
        else:
            self.state = restart(self.state, fresh)
        warm = min(1.0, (step + 1) / options.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * progress))
        self.model.train()
        loss, self.state = segment_loss(self.model, tokens, self.state)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.follow(min(options.ema, (1 + step) / (10 + step)))
        return loss.detach()

    @torch.no_grad()
    def follow(self, decay):
        mine, average = list(self.model.parameters()), list(self.average.parameters())
        torch._foreach_mul_(average, decay)
        torch._foreach_add_(average, mine, alpha=1 - decay)

    def rounded(self):
        model = copy.deepcopy(self.average)
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).float())
        return model

    def report(self, step, begin, losses):
        bits = self.held_out(self.rounded())["all"]
        point = {
            "epoch": round(step / self.segments, 2),
            "train_nats_per_token": round(float(torch.stack(losses).mean()), 4),
            "held_out_bits_per_byte": round(bits, 4),
            "seconds": round(time.time() - begin, 1),
        }
        self.curve.append(point)
        print(point, flush=True)

    def held_out(self, model):
        """Bits per byte of each book's held-out text and of all, state carried from its BOS on; for a model
        with a longest session in sessions of that length, each with BOS before it."""
        streams = [tokenizer.held_out_stream(self.processor, book) for book in self.books]
        parts = [sessions(ids, self.longest) for ids, _ in streams]
        each = iter(stream_nats(model, sum(parts, []), self.device))
        nats = [sum(next(each) for _ in some) for some in parts]
        sizes = [size for _, size in streams]
        out = {book.name: n / s / math.log(2) for book, n, s in zip(self.books, nats, sizes)}
        out["all"] = sum(nats) / sum(sizes) / math.log(2)
        out["bytes"] = sum(sizes)
        return out

    @torch.no_grad()
    def sample(self, model, prompt):
        """Temperature 0.8 over the pieces that make 95% of the probability."""
        generator = torch.Generator().manual_seed(self.options.seed)
        ids = [tokenizer.BOS, *self.processor.encode(prompt)]
        state, out = model.zero_state(1), []
        for token in ids[:-1]:
            _, state = model(torch.tensor([[token]], device=self.device), state)
        token = ids[-1]
        for _ in range(SAMPLE_TOKENS):
            logits, state = model(torch.tensor([[token]], device=self.device), state)
            p, order = torch.softmax(logits[0, 0].cpu() / 0.8, -1).sort(descending=True)
            p[p.cumsum(0) - p > 0.95] = 0
            token = int(order[torch.multinomial(p, 1, generator=generator)])
            if token == tokenizer.BOS:
                break
            out.append(token)
        return {"prompt": prompt, "text": self.processor.decode(out)}


def device_name(device):
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"


def segment_loss(model, tokens, state, narrow=True):
    """tokens [rows, segment + 1] -> mean nats per token, the state after them. narrow: matrix products
    in bf16 on a GPU."""
    kind = tokens.device.type
    with torch.autocast(kind, dtype=torch.bfloat16, enabled=narrow and kind == "cuda"):
        logits, state = model(tokens[:, :-1], state)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()), state


def difference(found, wanted, tolerance):
    """How loss and gradients differ from those wanted; nothing if the loss does by less than a
    thousandth and the gradients by less than their norm times the tolerance."""
    off = float((found[1] - wanted[1]).norm() / wanted[1].norm())
    if abs(found[0] - wanted[0]) < 1e-3 * wanted[0] and off < tolerance:  # both false of NaN
        return ""
    return f"loss {found[0]:.5f} for {wanted[0]:.5f}, gradients off by {off:.2%}"


def sessions(ids, longest):
    """ids begin with BOS -> arrays of at most `longest` ids, which do too, and have the others between them."""
    step = longest - 1 if longest else len(ids)
    return [np.concatenate([ids[:1], ids[at : at + step]]) for at in range(1, len(ids), step)]


def restart(state, fresh):
    """Zeroes the state of the rows that start afresh."""
    keep = (~fresh).float()
    return [tuple(x * keep.reshape(-1, *[1] * (x.ndim - 1)) for x in block) for block in state]


@torch.no_grad()
def stream_nats(model, streams, device, segment=1024):
    """Nats of each stream's tokens after its first, each stream a row with its state carried."""
    longest = max(len(ids) for ids in streams) - 1
    length = -(-longest // segment) * segment
    table = np.full((len(streams), length + 1), tokenizer.BOS, dtype=np.int64)
    counted = np.zeros((len(streams), length), dtype=bool)
    for row, ids in enumerate(streams):
        table[row, : len(ids)] = ids
        counted[row, : len(ids) - 1] = True
    state = model.zero_state(len(streams))
    nats = torch.zeros(len(streams), dtype=torch.float64)
    for s in range(0, length, segment):
        tokens = torch.from_numpy(table[:, s : s + segment + 1]).to(device)
        logits, state = model(tokens[:, :-1], state)
        each = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
        each = each.masked_fill(~torch.from_numpy(counted[:, s : s + segment]).to(device), 0)
        nats += each.double().sum(1).cpu()
    return nats.tolist()


def make_optimizer(model, options):
    def is_vector(name, parameter):  # or is read as one: [1, 1, D]
        return parameter.numel() == parameter.shape[-1] or name.endswith(("A_log", "r_k"))

    named = list(model.named_parameters())
    groups = [
        {"params": [p for n, p in named if not is_vector(n, p)], "weight_decay": options.weight_decay},
        {"params": [p for n, p in named if is_vector(n, p)], "weight_decay": 0.0},
    ]
    fused = {"fused": True} if options.device.startswith("cuda") else {}
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.95), **fused)
