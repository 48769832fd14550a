# SPDX-License-Identifier: Apache-2.0
"""Every case of tests/golden (numbers of the authors' code) and tests/golden_own (numbers of our own references),
through the real server: one process serves all float32 cases, a second one those in bfloat16."""
import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import wire
from server import Server

FOLDERS = [wire.ROOT / "tests/golden", wire.ROOT / "tests/golden_own"]
CASES = {path.parent.name: path.parent for folder in FOLDERS for path in sorted(folder.glob("*/golden.json"))
         if (path.parent / "config.json").exists()}
BF16 = sorted(name for name, path in CASES.items()
              if json.loads((path / "golden.json").read_text()).get("weights_dtype") == "bfloat16")
FP32 = sorted(set(CASES) - set(BF16))
LOGPROB_TOLERANCE = 2e-4  # of float32, to the authors'
# The authors' generate() leaves calibration out of its decode steps; we apply it in both (docs/adr).
FULL_FORWARD_ONLY = {"bhyt_calibration"}
# Converted checkpoints that have the logits of a forward pass and no generation.
NO_GENERATION = {"simplegpt_dcp"}
# The same folder with other values of T in c_attn: name -> --bhyt-seq-len (None: config.seq_len, which is 48).
SEQLEN = {"bhyt_seqlen": 10, "seqlen_5": 5, "seqlen_1": 1, "seqlen_48": None}


def golden(case):
    return json.loads((CASES[case] / "golden.json").read_text())


def arrays(case):
    return load_file(CASES[case] / "golden.safetensors")


def log_softmax(logits):
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def dense(alternatives, vocab):
    """A whole row of log-probabilities, from alternatives that name every id once, best first."""
    ids, values = np.array(alternatives.token_ids), np.array(alternatives.logprobs)
    assert len(ids) == vocab and len(set(ids.tolist())) == vocab
    assert np.all(np.diff(values) <= 0)
    row = np.empty(vocab)
    row[ids] = values
    return row


def rows_of(tops, vocab):
    return np.stack([dense(t, vocab) for t in tops])


def scored_rows(server, model, items, vocab):
    """[item][position, vocab]: log-probabilities at each scored position."""
    answer = server.stub.Score(wire.score_ids(model, items, top=vocab), timeout=120)
    return [rows_of([t.top_logprobs for t in item.tokens if t.HasField("logprob")], vocab) for item in answer.items]


def assert_rows(got, logits, tolerance=LOGPROB_TOLERANCE):
    worst = np.abs(got - log_softmax(logits)).max()
    assert worst <= tolerance, f"a log-probability is {worst:.2e} off"


@pytest.fixture(scope="module")
def fp32():
    models = {name: CASES[name] for name in FP32 + BF16}
    models.update({name: CASES["bhyt_seqlen"] for name in SEQLEN})
    flags = ["--dtype", "float32", "--threads", 1, "--kv-cache-tokens", 512]
    for name, tokens in SEQLEN.items():
        flags += ["--bhyt-seq-len", f"{name}={tokens}"] if tokens else []
    with Server(models, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def bf16():
    with Server({name: CASES[name] for name in BF16}, "--dtype", "bfloat16", "--threads", 1,
                "--kv-cache-tokens", 512) as server:
        yield server


def test_every_listed_case_is_here():
    listed = json.loads((FOLDERS[0] / "cases.json").read_text())
    assert {entry["case"] for entry in listed if "weights_dtype" in entry} <= set(CASES)
    assert len(CASES) >= 39 and len(BF16) >= 4


@pytest.mark.parametrize("case", sorted(set(FP32) - FULL_FORWARD_ONLY - NO_GENERATION))
def test_greedy_generation(fp32, case):
    recorded, data = golden(case)["generation"], arrays(case)
    vocab = data["logits"].shape[-1]
    answer = fp32.generate(case, recorded["prompt_ids"], len(recorded["generated_ids"]), temperature=0,
                           ignore_eos=True, top_logprobs=vocab)
    assert list(answer.token_ids) == recorded["generated_ids"]
    assert np.abs(np.array(answer.token_logprobs) - recorded["logprobs"]).max() <= LOGPROB_TOLERANCE
    if "gen_logits" in data:
        steps = len(data["gen_logits"])
        assert_rows(rows_of(answer.top_logprobs[:steps], vocab), data["gen_logits"])


@pytest.mark.parametrize("case", FP32)
def test_every_row_of_a_full_forward(fp32, case):
    data = arrays(case)
    vocab = data["logits"].shape[-1]
    for got, logits in zip(scored_rows(fp32, case, data["input_ids"], vocab), data["logits"], strict=True):
        assert_rows(got, logits[:-1])


def test_calibration_holds_in_decode_as_in_a_full_forward(fp32):
    case = "bhyt_calibration"
    recorded, data = golden(case)["generation"], arrays(case)
    forward = data["full_forward_on_generated"]
    steps, vocab = forward.shape
    pair = (recorded["prompt_ids"], recorded["generated_ids"][:steps])
    assert_rows(scored_rows(fp32, case, [pair], vocab)[0], forward)
    # The same rows one request each; the last row of a prefill is what a decode step must give.
    prompt = list(recorded["prompt_ids"])
    for step in range(steps):
        answer = fp32.generate(case, prompt, 1, ignore_eos=True, top_logprobs=vocab)
        assert_rows(rows_of(answer.top_logprobs, vocab), forward[step:step + 1])
        prompt.append(recorded["generated_ids"][step])
    ours = fp32.generate(case, recorded["prompt_ids"], steps, ignore_eos=True, logprobs=True)
    again = fp32.stub.Score(wire.score_ids(case, [(recorded["prompt_ids"], list(ours.token_ids))]), timeout=60)
    assert [t.logprob for t in again.items[0].tokens] == list(ours.token_logprobs)


def test_seq_len_of_the_config_is_t_unless_the_flag_says_otherwise(fp32):
    data, ids = arrays("bhyt_seqlen"), arrays("bhyt_seqlen")["input_ids"]
    for got, logits in zip(scored_rows(fp32, "seqlen_48", ids, 256), data["T.precompute48.logits"], strict=True):
        assert_rows(got, logits[:-1])
    for got, logits in zip(scored_rows(fp32, "seqlen_5", ids[:, :5], 256), data["T.fresh_first5.logits"], strict=True):
        assert_rows(got, logits[:-1])
    for row, logits in zip(ids, data["T.fresh_first1.logits"], strict=True):
        one = fp32.generate("seqlen_1", row[:1], 1, ignore_eos=True, top_logprobs=256)
        assert_rows(rows_of(one.top_logprobs, 256), logits)
    study = golden("bhyt_seqlen")["T_study"]
    for name, steps in (("gen_prompt5_precompute48", "seqlen_48"), ("gen_prompt5_fresh", "seqlen_5")):
        recorded = study[name]
        answer = fp32.generate(steps, recorded["prompt_ids"], len(recorded["generated_ids"]), ignore_eos=True,
                               top_logprobs=256)
        assert list(answer.token_ids) == recorded["generated_ids"]
        rows = data[f"T.{name}.gen_logits"]
        assert_rows(rows_of(answer.top_logprobs[:len(rows)], 256), rows)


def test_padded_batch_equals_our_unpadded_requests(fp32):
    data = arrays("bhyt_leftpad_batch")
    for i, mask in enumerate(data["pad.attention_mask"]):
        prompt = data["pad.input_ids"][i][mask != 0]
        answer = fp32.generate("bhyt_leftpad_batch", prompt, 32, ignore_eos=True, top_logprobs=256)
        rows = data[f"pad.single{i}_T10.gen_logits"]
        assert_rows(rows_of(answer.top_logprobs[:len(rows)], 256), rows)
        assert list(answer.token_ids) == list(data["pad.generated_ids"][i])


def test_folded_gammas_give_the_unfolded_logits():
    case = "bhyt_bias_normfold"
    data = arrays(case)
    got = {}
    for fold in ("on", "off"):
        with Server({case: CASES[case]}, "--fold", fold, "--threads", 1, "--kv-cache-tokens", 512) as server:
            got[fold] = scored_rows(server, case, data["input_ids"], 256)
            info = server.stub.GetModel(wire.pb.GetModelRequest(model=case), timeout=10)
            assert bool(info.folded) == (fold == "on")
    for rows in got.values():
        for mine, logits in zip(rows, data["logits"], strict=True):
            assert_rows(mine, logits[:-1])
        for mine, logits in zip(rows, data["logits_folded"], strict=True):
            assert_rows(mine, logits[:-1])
    assert any(not np.array_equal(a, b) for a, b in zip(got["on"], got["off"], strict=True)), "fold changed nothing"


@pytest.mark.parametrize("case", BF16)
def test_bf16_scores_of_the_recorded_tokens(bf16, case):
    recorded = golden(case)["generation"]
    pair = (recorded["prompt_ids"], recorded["generated_ids"])
    item = bf16.stub.Score(wire.score_ids(case, [pair]), timeout=60).items[0]
    off = np.abs(np.array([t.logprob for t in item.tokens]) - recorded["logprobs"])
    assert len(off) == 32 and off.max() <= 0.25 and off.mean() <= 0.03, f"max {off.max():.3f} mean {off.mean():.4f}"
    margins = recorded["top1_minus_top2_logit"]
    decided = [t.is_argmax for t, margin in zip(item.tokens, margins, strict=True) if margin >= 0.25]
    assert decided and all(decided)


@pytest.mark.parametrize("case", [c for c in BF16 if "logits_fp32_compute" in arrays(c)])
def test_bf16_weights_computed_in_fp32(fp32, case):
    data = arrays(case)
    vocab = data["logits"].shape[-1]
    for got, logits in zip(scored_rows(fp32, case, data["input_ids"], vocab), data["logits_fp32_compute"], strict=True):
        assert_rows(got, logits[:-1])


def test_cases_are_told_apart(fp32):
    """Serving one folder under another's name must fail this suite: c_attn's T alone moves a log-probability by far
    more than the tolerance."""
    ids = arrays("bhyt_seqlen")["input_ids"]
    a, b = (scored_rows(fp32, name, ids, 256)[0] for name in ("seqlen_5", "seqlen_48"))
    assert np.abs(a - b).max() > 100 * LOGPROB_TOLERANCE
