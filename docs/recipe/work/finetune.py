#!/usr/bin/env python3
"""Fine-tune uma-tiny on the windows of make_tasks.py and write the result as a GGUF file.

  finetune.py --data DIR --base uma-tiny-q8_0.gguf --recipe RECIPE --out uma-work-q8_0.gguf --minutes 6.3

RECIPE is the folder of train.py, export_gguf.py and tokenizer.json.  Starts from the base file's dequantised weights.
"""
import argparse, json, math, os, sys, time
import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
BOS = 1
NAMES = {"attn_q": "wq", "attn_k": "wk", "attn_v": "wv", "attn_output": "wo", "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down",
         "attn_norm": "attn_norm", "ffn_norm": "ffn_norm"}


def load_gguf(path, model):
    import gguf
    state = {}
    for t in gguf.GGUFReader(path).tensors:
        w = torch.from_numpy(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).copy())
        p = t.name.split(".")
        state[{"token_embd": "embed.weight", "output_norm": "norm.weight"}.get(p[0]) or f"layers.{p[1]}.{NAMES[p[2]]}.weight"] = w
    model.load_state_dict(state)


def hidden(train, model, ids, mask=None):
    """train.Model's forward pass up to the output matrix; mask keeps conversations apart."""
    c, (B, L) = model.c, ids.shape
    cos, sin = train.rope_tables(L, c["head_dim"], c["theta"], ids.device)
    x, rep = model.embed(ids), c["heads"] // c["kv_heads"]
    for l in model.layers:
        h = l.attn_norm(x)
        q = train.rope(l.wq(h).view(B, L, c["heads"], -1).transpose(1, 2), cos, sin)
        k = train.rope(l.wk(h).view(B, L, c["kv_heads"], -1).transpose(1, 2), cos, sin).repeat_interleave(rep, 1)
        v = l.wv(h).view(B, L, c["kv_heads"], -1).transpose(1, 2).repeat_interleave(rep, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + l.wo(y.transpose(1, 2).reshape(B, L, -1))
        h = l.ffn_norm(x)
        x = x + l.down(F.silu(l.gate(h)) * l.up(h))
    return model.norm(x)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--data", required=True)
    ap.add_argument("--base", required=True)
    ap.add_argument("--recipe", default=HERE)
    ap.add_argument("--out", required=True)
    ap.add_argument("--name", default="uma-work")
    ap.add_argument("--model", default="tiny", help="the shape of the base file: one of train.MODELS")
    ap.add_argument("--minutes", type=float, default=0, help="length of the run; the schedule follows the clock")
    ap.add_argument("--steps", type=int, default=0, help="or its length in steps")
    ap.add_argument("--batch", type=int, default=32, help="windows per step")
    ap.add_argument("--lr", type=float, default=5e-4)
    ap.add_argument("--warmup", type=int, default=100)
    ap.add_argument("--isolate", action="store_true", help="attention stays inside a conversation (slower)")
    ap.add_argument("--dense", action="store_true", help="the loss with fixed shapes (always so on a GPU)")
    ap.add_argument("--no-compile", action="store_true")
    ap.add_argument("--threads", type=int, default=0)
    ap.add_argument("--part-mb", type=int, default=0, help="also split the file into parts of this size")
    a = ap.parse_args()
    sys.path.insert(0, a.recipe)
    import train
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    meta = json.load(open(f"{a.data}/meta.json"))
    ids = torch.from_numpy(np.fromfile(f"{a.data}/ids.bin", np.uint16).astype(np.int16)).view(-1, meta["window"] + 1)
    mask = torch.from_numpy(np.fromfile(f"{a.data}/mask.bin", np.uint8)).view(-1, meta["window"] + 1)
    n_val = min(max(a.batch, len(ids) // 200), 4 * a.batch)
    ids, mask = ids.to(dev), mask.to(dev)
    vi, vm, ids, mask = ids[:n_val], mask[:n_val], ids[n_val:], mask[n_val:]
    model = train.Model(dict(train.MODELS[a.model], vocab=8192, theta=10000.0, context=2048, eps=1e-5)).to(dev)
    load_gguf(a.base, model)
    mats = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    opt = torch.optim.AdamW([dict(params=mats, weight_decay=0.1), dict(params=rest, weight_decay=0.0)], lr=a.lr, betas=(0.9, 0.95), eps=1e-10, fused=True)

    def encode(x):
        m = None
        if a.isolate:
            doc = (x == BOS).cumsum(1)
            i = torch.arange(x.shape[1], device=x.device)
            m = ((doc[:, :, None] == doc[:, None, :]) & (i[:, None] >= i[None, :]))[:, None]
        return hidden(train, model, x, m)

    def dense(x, y, w):                    # fixed shapes, for a compiler
        lg = F.linear(encode(x), model.embed.weight).float().flatten(0, 1)
        return (F.cross_entropy(lg, y.flatten(), reduction="none") * w.flatten()).sum() / w.sum()

    fast = encode

    def sparse(x, y, w):                   # the output matrix only where it counts, for a CPU
        at = w.flatten().nonzero()[:, 0]
        lg = F.linear(fast(x).flatten(0, 1)[at], model.embed.weight).float()
        return F.cross_entropy(lg, y.flatten()[at])

    loss_fn = dense if dev == "cuda" or a.dense else sparse
    if not a.no_compile:
        dense, fast = torch.compile(dense), torch.compile(encode)
        loss_fn = dense if dev == "cuda" or a.dense else sparse

    def batch(i, src=None):
        s, m = src or (ids, mask)
        w = s[i].long()
        return w[:, :-1], w[:, 1:], m[i][:, 1:].float()

    def validate():
        with torch.no_grad(), torch.autocast(dev, torch.bfloat16):
            return float(np.mean([loss_fn(*batch(slice(i, i + a.batch), (vi, vm))).item() for i in range(0, n_val - a.batch + 1, a.batch)]))

    def save():
        ck = a.out + ".pt"
        torch.save(dict(config=model.c, state={k: v.detach().float().cpu() for k, v in model.state_dict().items()}), ck)
        import export_gguf
        export_gguf.CHATML = open(f"{HERE}/chat_template.jinja").read().rstrip("\n")
        sys.argv = ["export", "--checkpoint", ck, "--tokenizer", f"{a.recipe}/tokenizer.json", "--name", a.name, "--out", a.out]
        export_gguf.main()
        os.remove(ck)

    v0 = validate()
    with torch.autocast(dev, torch.bfloat16):              # compile before the clock starts
        l0 = loss_fn(*batch(slice(0, a.batch)))
    l0.backward()
    opt.zero_grad(set_to_none=True)
    print(f"{len(ids)} windows of {meta['window']}, validation loss before {v0:.4f}", flush=True)
    start, step, order, saved = time.time(), 0, [], time.time()
    while True:
        prog = (time.time() - start) / (60 * a.minutes) if a.minutes else step / a.steps
        if prog >= 1:
            break
        if len(order) < a.batch:
            order = torch.randperm(len(ids), device=dev)
        i, order = order[:a.batch], order[a.batch:]
        lr = a.lr * min(1, (step + 1) / a.warmup) * (.02 + .98 * .5 * (1 + math.cos(math.pi * prog)))
        for g in opt.param_groups:
            g["lr"] = lr
        with torch.autocast(dev, torch.bfloat16):
            loss = loss_fn(*batch(i))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        step += 1
        if step % 20 == 0 and dev == "cuda":
            torch.cuda.synchronize()
        if step % (200 if dev == "cuda" else 20) == 0 or step in (1, 20):
            dt = time.time() - start
            print(f"step {step} {dt:.0f}s {100 * prog:.1f}% lr {lr:.1e} loss {loss.item():.4f} {step * a.batch * meta['window'] / dt / 1e3:.1f}k tok/s", flush=True)
    secs = time.time() - start
    res = dict(steps=step, seconds=round(secs), tokens_seen=step * a.batch * meta["window"], passes=round(step * a.batch / len(ids), 2), batch_windows=a.batch,
               window=meta["window"], lr=a.lr, val_before=v0, val_after=validate(), device=torch.cuda.get_device_name() if dev == "cuda" else "cpu")
    save()
    print("RESULT " + json.dumps(res), flush=True)
    json.dump(dict(train=res, data=meta), open(a.out + ".json", "w"), indent=1)
    if a.part_mb:
        b = open(a.out, "rb").read()
        n = a.part_mb << 20
        for k in range(0, len(b), n):
            open(f"{a.out}.part{k // n}", "wb").write(b[k:k + n])
        os.remove(a.out)


if __name__ == "__main__":
    main()
