"""build/data/weights: files of the real libraries go in and out, and what is no GPT-2 or BERT is refused.

Needs nothing beyond the standard library for small files that it writes itself; with torch, transformers and safetensors
it also makes a random GPT-2 and a random BERT, and compares logits and losses.
"""

import json
import os
import random
import struct
import subprocess
import tempfile
import unittest

BUILD = os.environ["RANKWISE_BUILD"]
TIME_LIMIT_S = 60 * float(os.environ.get("RANKWISE_SLOWNESS", "1"))  # of a program; as long as this machine is slow

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError:
    transformers = None


def shapes(layers, channels, context, vocabulary):
    """Names and shapes of a GPT-2's tensors."""
    C = channels
    found = {"wte.weight": [vocabulary, C], "wpe.weight": [context, C], "ln_f.weight": [C], "ln_f.bias": [C]}
    for i in range(layers):
        for name, shape in {"ln_1.weight": [C], "ln_1.bias": [C], "attn.c_attn.weight": [C, 3 * C],
                            "attn.c_attn.bias": [3 * C], "attn.c_proj.weight": [C, C], "attn.c_proj.bias": [C],
                            "ln_2.weight": [C], "ln_2.bias": [C], "mlp.c_fc.weight": [C, 4 * C],
                            "mlp.c_fc.bias": [4 * C], "mlp.c_proj.weight": [4 * C, C], "mlp.c_proj.bias": [C]}.items():
            found[f"h.{i}.{name}"] = shape
    return found


def bert_shapes(layers, channels, context, vocabulary):
    """Names and shapes of the tensors of a BertForPreTraining: linear layers are (outputs, inputs)."""
    C = channels
    found = {"cls.predictions.bias": [vocabulary]}
    for kind, rows in ("word", vocabulary), ("position", context), ("token_type", 2):
        found[f"bert.embeddings.{kind}_embeddings.weight"] = [rows, C]
    linear = {"bert.pooler.dense": (C, C), "cls.seq_relationship": (2, C), "cls.predictions.transform.dense": (C, C)}
    norms = ["bert.embeddings", "cls.predictions.transform"]
    for i in range(layers):
        layer = f"bert.encoder.layer.{i}."
        linear.update({f"{layer}attention.self.{part}": (C, C) for part in ("query", "key", "value")})
        linear.update({f"{layer}attention.output.dense": (C, C), f"{layer}intermediate.dense": (4 * C, C),
                       f"{layer}output.dense": (C, 4 * C)})
        norms += [layer + "attention.output", layer + "output"]
    for name, (outputs, inputs) in linear.items():
        found.update({name + ".weight": [outputs, inputs], name + ".bias": [outputs]})
    for name in norms:
        found.update({name + ".LayerNorm.weight": [C], name + ".LayerNorm.bias": [C]})
    return found


def elements(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product


def tensors_of(names_and_shapes, seed=1):
    """Random tensors: name -> (dtype, shape, bytes)."""
    numbers = random.Random(seed)
    return {name: ("F32", shape, struct.pack(f"<{elements(shape)}f", *(numbers.gauss(0, 0.1) for _ in range(elements(shape)))))
            for name, shape in names_and_shapes.items()}


def write(path, tensors):
    """A safetensors file as the library writes it: names in order, {"format": "pt"}."""
    header, data, end = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (dtype, shape, content) in sorted(tensors.items()):
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(content)]}
        data.append(content)
        end += len(content)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))


class Weights(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.source, self.checkpoint, self.back = (self.path(name) for name in ("a.safetensors", "a.h5", "b.safetensors"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def run_program(self, *words, program="data/weights"):
        return subprocess.run([os.path.join(BUILD, program), *words], capture_output=True, text=True,
                              timeout=TIME_LIMIT_S)

    def succeed(self, *words):
        done = self.run_program(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def assert_refused(self, *words, says, program="data/weights"):
        done = self.run_program(*words, program=program)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("error:"), 1, done.stderr)
        for text in says:
            self.assertIn(text, done.stderr)

    def content(self, path):
        with open(path, "rb") as file:
            return file.read()


class RoundTrip(Weights):
    def test_the_bytes_are_the_same(self):
        write(self.source, tensors_of(shapes(3, 64, 20, 61)))
        self.assertIn("L=3 H=1 C=64 V=61, context 20", self.succeed("import", self.source, self.checkpoint))
        self.succeed("export", self.checkpoint, self.back)
        self.assertEqual(self.content(self.source), self.content(self.back))

    def test_a_prefix_masks_and_a_tied_head_are_understood(self):
        tensors = tensors_of(shapes(2, 48, 9, 33))
        write(self.source, tensors)
        prefixed = {f"transformer.{name}": tensor for name, tensor in tensors.items()}
        prefixed["lm_head.weight"] = tensors["wte.weight"]
        prefixed["transformer.h.1.attn.bias"] = ("U8", [1, 1, 9, 9], bytes(81))
        other = self.path("prefixed.safetensors")
        write(other, prefixed)
        self.assertIn("H=4", self.succeed("import", "--heads=4", other, self.checkpoint))
        self.succeed("export", self.checkpoint, self.back)
        self.assertEqual(self.content(self.source), self.content(self.back))

    def test_a_lesson_starts_from_them(self):
        write(self.source, tensors_of(shapes(1, 64, 64, 256)))
        self.succeed("import", self.source, self.checkpoint)
        sizes = ["--layers=1", "--heads=1", "--steps=1"]
        plain, tuned = (subprocess.run([os.path.join(BUILD, "lessons/01_single_device"), *sizes, *more], capture_output=True,
                                       text=True, timeout=TIME_LIMIT_S) for more in ([], [f"--initial={self.checkpoint}"]))
        self.assertEqual(tuned.returncode, 0, tuned.stdout + tuned.stderr)
        self.assertNotEqual(plain.stdout.partition("digest")[2][:20], tuned.stdout.partition("digest")[2][:20])


class Refusals(Weights):
    def refuse(self, tensors, *options, says):
        write(self.source, tensors)
        self.assert_refused("import", *options, self.source, self.checkpoint, says=says)
        self.assertEqual(sorted(os.listdir(self.folder)), ["a.safetensors"])

    def test_tensors_that_make_no_gpt2_are_named(self):
        whole = tensors_of(shapes(2, 64, 8, 16))
        self.refuse({k: v for k, v in whole.items() if k != "h.1.mlp.c_fc.bias"}, says=["h.1.mlp.c_fc.bias is missing"])
        self.refuse({k: v for k, v in whole.items() if k != "wte.weight"}, says=["wte.weight"])
        self.refuse({k: v for k, v in whole.items() if k != "h.0.ln_1.weight"}, says=["h.0.ln_1.weight"])
        self.refuse({**whole, "h.0.extra": ("F32", [1], bytes(4))}, says=["h.0.extra is not a tensor"])
        self.refuse({**whole, "ln_f.bias": ("F32", [63], bytes(252))}, says=["ln_f.bias", "(63)", "(64)"])
        self.refuse({**whole, "ln_f.bias": ("F64", [64], bytes(512))}, says=["ln_f.bias", "F64", "BF16"])
        self.refuse({**whole, "lm_head.weight": ("F32", [16, 64], bytes(4096))}, says=["lm_head.weight", "differs"])
        self.refuse({**whole, "wpe.weight": ("F32", [64], bytes(256))}, says=["wpe.weight", "not a matrix"])
        self.refuse(tensors_of(shapes(1, 40, 8, 16)), says=["40 channels", "--heads"])
        self.refuse(whole, "--heads=7", says=["--heads=7"])

    def test_weights_that_are_not_finite_are_counted_and_the_first_is_named(self):
        tensors = tensors_of(shapes(2, 64, 8, 256))
        tensors["lm_head.weight"] = tensors["wte.weight"]

        def put(name, at, value):
            dtype, shape, content = tensors[name]
            tensors[name] = (dtype, shape, content[:4 * at] + struct.pack("<f", value) + content[4 * at + 4:])

        put("h.1.mlp.c_fc.bias", 17, float("-inf"))
        self.refuse(tensors, says=["a.safetensors has 1 weight that is not finite: -inf is element 17 of h.1.mlp.c_fc.bias.",
                                   "--allow-not-finite"])
        for name in "wte.weight", "lm_head.weight":  # tied: NaN differs from itself
            put(name, 1000, float("nan"))
        self.refuse(tensors, says=["2 weights that are not finite: the first, nan is element 1,000 of wte.weight."])
        # As it is, if it has to be; no run starts from it.
        self.succeed("import", "--allow-not-finite", self.source, self.checkpoint)
        self.succeed("export", self.checkpoint, self.back)
        del tensors["lm_head.weight"]
        write(self.source, tensors)
        self.assertEqual(self.content(self.source), self.content(self.back))
        self.assert_refused("--layers=2", "--heads=1", "--context=8", f"--initial={self.checkpoint}",
                            "--steps=1", program="lessons/01_single_device",
                            says=[f"--initial={self.checkpoint} has 2 weights that are not finite: "
                                  "the first, nan is element 1,000 of wte.weight."])

    def test_files_and_commands(self):
        write(self.source, tensors_of(shapes(1, 64, 8, 16)))
        self.assert_refused("import", self.source, says=["weights import"])
        self.assert_refused("report", self.source, self.checkpoint, says=["report", "weights import"])
        self.assert_refused("import", self.path("none"), self.checkpoint, says=["none"])
        self.assert_refused("import", self.path("x" * 256), self.checkpoint, says=["cannot be found: File name too long"])
        self.assert_refused("import", self.source, self.source, says=["itself"])
        self.assert_refused("import", self.source, self.path("no/a.h5"), says=["no/a.h5"])
        self.assert_refused("export", self.source, self.back, says=["a.safetensors"])


class Folders(Weights):
    """Folders as transformers writes them."""

    SIZES = {"n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": 20, "vocab_size": 61}

    def setUp(self):
        super().setUp()
        self.tensors = tensors_of(shapes(3, 64, 20, 61))
        write(self.source, self.tensors)
        self.model = self.path("model")
        os.mkdir(self.model)
        self.write_json("config.json", {"model_type": "gpt2", **self.SIZES})

    def write_json(self, name, content):
        with open(os.path.join(self.model, name), "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))

    def write_shards(self):
        """The tensors in two files and an index; returns its weight_map."""
        names = sorted(self.tensors)
        files = {name: f"model-0000{1 + (i % 3 == 0)}-of-00002.safetensors" for i, name in enumerate(names)}
        for file in set(files.values()):
            write(os.path.join(self.model, file), {name: self.tensors[name] for name in names if files[name] == file})
        self.write_json("model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": files})
        return files

    def assert_model_refused(self, *options, says):
        self.assert_refused("import", *options, self.model, self.checkpoint, says=says)
        self.assertFalse(os.path.exists(self.checkpoint))

    def test_one_file_or_several_go_in(self):
        write(os.path.join(self.model, "model.safetensors"), self.tensors)
        self.assertIn("L=3 H=4 C=64 V=61, context 20", self.succeed("import", self.model, self.checkpoint))
        self.succeed("export", self.checkpoint, self.back)
        self.assertEqual(self.content(self.source), self.content(self.back))
        os.remove(os.path.join(self.model, "model.safetensors"))
        self.write_shards()
        self.succeed("import", self.model + "/", self.path("other.h5"))
        self.succeed("export", self.path("other.h5"), self.back)
        self.assertEqual(self.content(self.source), self.content(self.back))

    def test_a_folder_comes_out_and_goes_in_again(self):
        self.succeed("import", "--heads=4", self.source, self.checkpoint)
        out = self.path("out")
        self.succeed("export", self.checkpoint, out)
        self.assertEqual(sorted(os.listdir(out)), ["config.json", "generation_config.json", "model.safetensors"])
        config = json.loads(self.content(os.path.join(out, "config.json")))
        self.assertEqual({name: config[name] for name in self.SIZES}, self.SIZES)
        self.assertIsNone(config["eos_token_id"])  # 50256 is not in this vocabulary
        self.assertEqual(self.content(os.path.join(out, "model.safetensors")), self.content(self.source))
        self.assertIn("H=4", self.succeed("import", out, self.path("again.h5")))
        os.rename(os.path.join(out, "config.json"), self.path("kept.json"))
        os.symlink("../kept.json", os.path.join(out, "config.json"))
        os.truncate(self.path("kept.json"), 0)
        self.succeed("export", self.checkpoint, out + "/")  # replaces it
        self.assertEqual(json.loads(self.content(self.path("kept.json"))), config)
        os.chmod(self.path("kept.json"), 0o400)
        self.assert_refused("export", self.checkpoint, out, says=["out/config.json", "write-protected"])
        self.assertEqual(sorted(os.listdir(out)), ["config.json", "generation_config.json", "model.safetensors"])

    def test_what_contradicts_itself_is_refused(self):
        self.assert_model_refused(says=["has no model.safetensors"])
        write(os.path.join(self.model, "model.safetensors"), self.tensors)
        self.assert_model_refused("--heads=2", says=["contradicts", "H=4", "H=2"])
        for change, says in (({"n_layer": 4}, ["L=4", "L=3"]), ({"n_embd": 32}, ["C=32", "C=64"]),
                             ({"model_type": "llama"}, ['model_type = "llama"']), ({"n_head": "4"}, ["no number n_head"]),
                             ({"n_head": 5}, ["--heads=5"]), ({"activation_function": "relu"}, ['"relu"', "gelu_new"]),
                             ({"layer_norm_epsilon": 1e-6}, ["layer_norm_epsilon = 1e-06"]),
                             ({"n_inner": 100}, ["n_inner = 100"]), ({"tie_word_embeddings": False}, ["tie_word_embeddings"]),
                             ({"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx = true"])):
            with self.subTest(change=change):
                self.write_json("config.json", {"model_type": "gpt2", **self.SIZES, **change})
                self.assert_model_refused(says=says)
        deep = json.dumps({"model_type": "gpt2", **self.SIZES, "n_inner": None}).replace("null", "[" * 100_000 + "]" * 100_000)
        for text in ("", "[]", "{", "[" * 100_000, deep):
            self.write_json("config.json", text)
            self.assert_model_refused(says=["config.json is not "])
        with open(os.path.join(self.model, "config.json"), "w", encoding="utf-16") as file:
            json.dump({"model_type": "gpt2", **self.SIZES}, file)
        self.assert_model_refused(says=["config.json is not plain text in UTF-8", "UTF-16", "iconv"])
        os.remove(os.path.join(self.model, "config.json"))
        self.assert_model_refused(says=["config.json does not exist"])

    def test_an_index_and_its_files_agree(self):
        files = self.write_shards()
        index = "model.safetensors.index.json"
        for weight_map, says in (({**files, "h.9.extra": files["wte.weight"]}, ["h.9.extra", "it has none"]),
                                 ({k: v for k, v in files.items() if k != "ln_f.bias"}, ["ln_f.bias", "does not say"]),
                                 ({**files, "ln_f.bias": "../a.safetensors"}, ["../a.safetensors"]),
                                 ({**files, "h.9.extra": "none.safetensors"}, ["none.safetensors", "does not exist"]),
                                 ({**files, "ln_f.bias": 7}, ["ln_f.bias"]), ([], ["weight_map"])):
            with self.subTest(says=says):
                self.write_json(index, {"weight_map": weight_map})
                self.assert_model_refused(says=says)

    def test_pickles_are_refused_by_name(self):
        self.write_json("pytorch_model.bin", "x")
        self.assert_model_refused(says=["pytorch_model.bin is a pickle", "save_pretrained"])
        self.assert_refused("import", os.path.join(self.model, "pytorch_model.bin"), self.checkpoint, says=["is a pickle"])

    def test_a_folder_that_cannot_be_made(self):
        self.succeed("import", self.source, self.checkpoint)
        self.assert_refused("export", self.checkpoint, self.path("no/out"), says=["no/out is not a folder"])
        self.assert_refused("export", self.checkpoint, "/dev/full", says=["/dev/full is not a folder"])

    def test_weights_of_another_mask_do_not_go_out(self):
        done = self.run_program("--steps=1", "--mask=full", f"--checkpoint={self.checkpoint}", program="lessons/01_single_device")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_refused("export", self.checkpoint, self.path("out"), says=["--mask=full", "causal mask"])
        self.assertFalse(os.path.exists(self.path("out")))

    def test_a_run_takes_all_sizes_from_the_file(self):
        lesson = os.path.join(BUILD, "lessons/01_single_device")
        write(self.source, tensors_of(shapes(2, 64, 24, 256)))
        self.succeed("import", "--heads=2", self.source, self.checkpoint)

        def run(*options):
            return subprocess.run([lesson, f"--initial={self.checkpoint}", "--steps=1", *options], capture_output=True,
                                  text=True, timeout=TIME_LIMIT_S)
        for options in ([], ["--dry-run"], ["--layers=2", "--context=24"]):
            done = run(*options)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("L=2 H=2 C=64 V=256, context 24", done.stdout)
        for options, says in ((["--layers=3"], "--layers=2 there, --layers=3 here"), (["--model=nano"], "there")):
            done = run(*options)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn(says, done.stderr)
        for name, content in (("none.h5", None), ("text.h5", b"no checkpoint")):
            if content:
                with open(self.path(name), "wb") as file:
                    file.write(content)
            self.assert_refused("--steps=1", f"--initial={self.path(name)}", program="lessons/01_single_device", says=[name])


class Bert(Weights):
    """Files of a BertForPreTraining: other names, transposed matrices, q, k and v apart."""

    CONFIG = {"model_type": "bert", "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 12,
              "max_position_embeddings": 9, "vocab_size": 21, "intermediate_size": 48, "hidden_act": "gelu_new",
              "layer_norm_eps": 1e-12, "type_vocab_size": 2}

    def setUp(self):
        super().setUp()
        self.tensors = tensors_of(bert_shapes(2, 12, 9, 21))
        write(self.source, self.tensors)
        self.model = self.path("model")

    def write_model(self, tensors=None, **changes):
        os.makedirs(self.model, exist_ok=True)
        write(os.path.join(self.model, "model.safetensors"), tensors or self.tensors)
        with open(os.path.join(self.model, "config.json"), "w", encoding="utf-8") as file:
            json.dump({name: value for name, value in {**self.CONFIG, **changes}.items() if value is not None}, file)

    def refuse(self, *options, says):
        self.assert_refused("import", *options, self.model, self.checkpoint, says=says)
        self.assertFalse(os.path.exists(self.checkpoint))

    def test_the_bytes_are_the_same(self):
        self.assertIn("L=2 H=3 C=12 V=21, context 9", self.succeed("import", "--heads=3", self.source, self.checkpoint))
        self.succeed("export", self.checkpoint, self.back)
        self.assertEqual(self.content(self.source), self.content(self.back))

    def test_a_checkpoint_goes_out_and_comes_back(self):
        self.succeed("import", "--heads=3", self.source, self.checkpoint)
        out, again = self.path("out"), self.path("again.h5")
        os.makedirs(out)
        with open(os.path.join(out, "generation_config.json"), "w", encoding="utf-8") as file:
            file.write("{}")  # of a GPT-2 that was here before
        self.succeed("export", self.checkpoint, out)
        self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
        config = json.loads(self.content(os.path.join(out, "config.json")))
        self.assertEqual({name: config[name] for name in self.CONFIG}, self.CONFIG)
        self.assertEqual(config["pad_token_id"], 17)
        self.assertEqual(config["architectures"], ["BertForPreTraining"])
        self.succeed("import", out, again)
        self.assertEqual(self.content(self.checkpoint), self.content(again))

    def test_copies_buffers_and_the_names_of_tensorflow_are_understood(self):
        tensors = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
                   for name, tensor in self.tensors.items()}
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"]
        tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
        tensors["bert.embeddings.position_ids"] = ("I64", [1, 9], bytes(72))
        self.write_model(tensors, hidden_act="gelu_pytorch_tanh")
        self.succeed("import", self.model, self.checkpoint)
        self.succeed("export", self.checkpoint, self.back)
        self.assertEqual(self.content(self.source), self.content(self.back))

    def test_lesson_12_starts_from_them(self):
        write(self.source, tensors_of(bert_shapes(1, 64, 64, 260)))
        self.succeed("import", self.source, self.checkpoint)

        def run(*options, lesson="12_bert"):
            return self.run_program("--steps=1", *options, program="lessons/" + lesson)
        plain, tuned = run("--layers=1", "--heads=1"), run(f"--initial={self.checkpoint}")
        for done in plain, tuned:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("L=1 H=1 C=64 V=260, context 64", tuned.stdout)
        self.assertNotEqual(plain.stdout.partition("digest")[2][:20], tuned.stdout.partition("digest")[2][:20])
        trained, again = self.path("trained.h5"), self.path("again.safetensors")
        self.assertEqual(run("--layers=1", "--heads=1", f"--checkpoint={trained}").returncode, 0)
        self.succeed("export", trained, self.back)
        self.succeed("import", "--heads=1", self.back, self.path("weights.h5"))
        self.succeed("export", self.path("weights.h5"), again)
        self.assertEqual(self.content(self.back), self.content(again))
        other = run(f"--initial={self.checkpoint}", lesson="01_single_device")
        self.assertEqual(other.returncode, 2, other.stdout)
        self.assertIn("holds a BERT", other.stderr)

    def test_tensors_that_make_no_bert_are_named(self):
        key, words = "bert.encoder.layer.1.attention.self.key.weight", "bert.embeddings.word_embeddings.weight"
        for change, says in (({key: None}, ["is not a whole BERT", key + " is missing", "BertForPreTraining"]),
                             ({key: ("F32", [12, 13], bytes(624))}, [key, "(12, 13)", "(12, 12)"]),
                             ({"cls.seq_relationship.weight": ("F32", [12, 2], bytes(96))}, ["(12, 2), not (2, 12)"]),
                             ({"bert.extra": ("F32", [1], bytes(4))}, ["bert.extra is not a tensor of a BERT with 2 layers"]),
                             ({"cls.predictions.bias": ("F64", [21], bytes(168))}, ["cls.predictions.bias is F64"]),
                             ({"cls.predictions.decoder.weight": ("F32", [21, 12], bytes(1008))}, ["differs", "BERT's"]),
                             ({"cls.predictions.decoder.bias": ("F32", [21], bytes(84))}, ["differs", "cls.predictions.bias"]),
                             ({words: ("F32", [252], bytes(1008))}, [words, "not a matrix"]),
                             ({words: None, words[5:]: self.tensors[words]}, [f"has no tensor {words}"])):
            with self.subTest(says=says):
                tensors = {**self.tensors, **change}
                write(self.source, {name: tensor for name, tensor in tensors.items() if tensor})
                self.assert_refused("import", "--heads=3", self.source, self.checkpoint, says=says)
        write(self.source, {**self.tensors, key: ("F32", [12, 12], struct.pack("<144f", *[0] * 13, *[float("nan")] * 131))})
        self.assert_refused("import", "--heads=3", self.source, self.checkpoint, says=["131 weights", f"element 13 of {key}"])

    def test_variants_that_are_not_computed_here_are_refused(self):
        for change, says in (({"hidden_act": "gelu"}, ['hidden_act = "gelu"', "5e-4", 'Set hidden_act to "gelu_new"']),
                             ({"hidden_act": None}, ["gelu_new"]), ({"hidden_act": "relu"}, ['hidden_act = "relu"']),
                             ({"layer_norm_eps": 1e-5}, ["layer_norm_eps = 1e-05"]), ({"intermediate_size": 36}, ["= 36", "48"]),
                             ({"type_vocab_size": 1}, ["type_vocab_size = 1"]), ({"is_decoder": True}, ["is_decoder"]),
                             ({"position_embedding_type": "relative_key"}, ["relative_key"]),
                             ({"tie_word_embeddings": False}, ["tie_word_embeddings"]),
                             ({"hidden_size": None}, ["no number hidden_size"]), ({"num_attention_heads": 5}, ["--heads=5"]),
                             ({"num_hidden_layers": 3}, ["L=3", "L=2"]), ({"model_type": "roberta"}, ["roberta", '"bert"'])):
            with self.subTest(change=change):
                self.write_model(**change)
                self.refuse(says=says)
        self.write_model()
        self.refuse("--heads=2", says=["contradicts", "H=3", "H=2"])


@unittest.skipUnless(transformers, "torch, transformers and safetensors are not there")
class RealLibraries(Weights):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        config = transformers.GPT2Config(vocab_size=301, n_positions=40, n_embd=96, n_layer=3, n_head=6,
                                         attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
        self.model = transformers.GPT2LMHeadModel(config).eval()
        for parameter in self.model.parameters():  # away from their initial zeros and ones
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        self.model.save_pretrained(self.folder)
        self.succeed("import", "--heads=6", self.path("model.safetensors"), self.checkpoint)

    def test_logits_are_those_of_pytorch(self):
        for length in (1, 7, 40):
            tokens = torch.randint(301, (1, length))
            done = self.run_program(self.checkpoint, *map(str, tokens[0].tolist()), program="tests/logits")
            self.assertEqual(done.returncode, 0, done.stderr)
            ours = torch.tensor(json.loads(done.stdout))
            theirs = self.model(tokens).logits[0, -1].detach()
            self.assertLess((ours - theirs).abs().max().item(), 1e-4)

    def test_from_pretrained_loads_what_goes_out(self):
        out = self.path("out")
        self.succeed("export", self.checkpoint, out)
        again = transformers.GPT2LMHeadModel.from_pretrained(out).eval()
        tokens = torch.randint(301, (1, 12))
        self.assertTrue(torch.equal(again(tokens).logits, self.model(tokens).logits))
        self.assertEqual(again.generate(tokens, max_new_tokens=3, do_sample=False, pad_token_id=0).shape, (1, 15))

    def test_shards_of_the_library_go_in(self):
        sharded = self.path("sharded")
        self.model.save_pretrained(sharded, max_shard_size="300KB")
        self.assertGreater(len([name for name in os.listdir(sharded) if name.endswith(".safetensors")]), 1)
        self.assertIn("H=6", self.succeed("import", sharded, self.path("other.h5")))
        self.succeed("export", self.path("other.h5"), self.back)
        self.succeed("export", self.checkpoint, self.path("c.safetensors"))
        self.assertEqual(self.content(self.back), self.content(self.path("c.safetensors")))

    def test_what_goes_out_is_what_the_library_writes(self):
        self.succeed("export", self.checkpoint, self.back)
        expected = self.path("expected.safetensors")
        tensors = {name: tensor.contiguous() for name, tensor in self.model.transformer.state_dict().items()
                   if not name.endswith((".attn.bias", ".attn.masked_bias"))}
        safetensors.torch.save_file(tensors, expected, metadata={"format": "pt"})
        self.assertEqual(self.content(expected), self.content(self.back))


@unittest.skipUnless(transformers, "torch, transformers and safetensors are not there")
class RealBert(Weights):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        self.vocabulary, self.context, B = 60, 24, 5
        model = transformers.BertForPreTraining(transformers.BertConfig(
            vocab_size=self.vocabulary, hidden_size=96, num_hidden_layers=3, num_attention_heads=6, intermediate_size=384,
            max_position_embeddings=self.context, hidden_act="gelu_new", pad_token_id=self.vocabulary - 4))
        for parameter in model.parameters():  # away from their initial zeros and ones
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        self.model = model.eval()
        self.published = self.path("published")
        self.model.save_pretrained(self.published)
        place = torch.arange(self.context).expand(B, -1)
        self.lengths = torch.tensor([self.context, 5, 17, 1, 9])
        inside = place < self.lengths[:, None]
        self.inputs = torch.randint(self.vocabulary - 4, place.shape).where(inside, self.vocabulary - 4)
        self.mask = inside.long()
        self.segments = (inside & (2 * place > self.lengths[:, None])).long()
        self.targets = torch.randint(self.vocabulary - 4, place.shape).where(inside & (place % 3 == 0), -1)
        self.labels = torch.tensor([0, 1, 1, 0, 1])

    def losses(self, model):
        """Losses of the library: of both tasks together, and of the next sentence."""
        out = model(input_ids=self.inputs, attention_mask=self.mask, token_type_ids=self.segments,
                    labels=self.targets.masked_fill(self.targets < 0, -100), next_sentence_label=self.labels)
        pairs = torch.nn.functional.cross_entropy(out.seq_relationship_logits, self.labels)
        return [out.loss.item() - pairs.item(), pairs.item()]

    def assert_our_losses(self, checkpoint):
        batch = self.path("batch.json")
        with open(batch, "w", encoding="utf-8") as file:
            json.dump({name: getattr(self, name).flatten().tolist()
                       for name in ("inputs", "segments", "targets", "lengths", "labels")}, file)
        done = self.run_program(checkpoint, batch, program="tests/bert_losses")
        self.assertEqual(done.returncode, 0, done.stderr)
        for ours, theirs in zip(json.loads(done.stdout), self.losses(self.model)):
            self.assertLess(abs(ours / theirs - 1), 1e-5)

    def test_a_folder_goes_in_and_its_losses_are_those_of_pytorch(self):
        self.assertIn("L=3 H=6 C=96 V=60, context 24", self.succeed("import", self.published, self.checkpoint))
        self.assert_our_losses(self.checkpoint)

    def test_from_pretrained_loads_what_goes_out(self):
        self.succeed("import", self.published, self.checkpoint)
        out = self.path("out")
        self.succeed("export", self.checkpoint, out)
        again, report = transformers.BertForPreTraining.from_pretrained(out, output_loading_info=True)
        self.assertEqual([list(report[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")], [[]] * 3)
        self.assertEqual(again.config.pad_token_id, self.vocabulary - 4)
        self.assertEqual(self.losses(again.eval()), self.losses(self.model))
        with open(os.path.join(self.published, "model.safetensors"), "rb") as file:
            self.assertEqual(file.read(), self.content(os.path.join(out, "model.safetensors")))


if __name__ == "__main__":
    unittest.main()
