#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gpt2/generate.hpp"
#include "tests/catch.hpp"
#include "tests/gpt2/kernels/families.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t T = 12;

ModelConfig small_config()
{
  return tiny_config(3, 2, 40, T);
}

/// A model and what it says without a cache: each token from a forward pass over a whole window of T tokens.
struct Subject {
  explicit Subject(Kernels kernels, const ModelConfig& config = small_config())
      : lab(std::move(kernels)), tiny(lab, config, {.type = DType::f32, .B = 1, .T = config.context})
  {
  }
  Generator generator() { return {lab.memory(), lab.stream(), tiny.model, tiny.p, tiny.options.T}; }

  std::vector<float> logits_without_cache(std::span<const Token> text) const
  {
    const std::int64_t length = tiny.options.T, seen = std::min<std::int64_t>(length, std::ssize(text));
    const ModelConfig& config = tiny.model.context.config;
    Batch window{1, length, {text.end() - seen, text.end()}, {}, 0};
    window.inputs.resize(static_cast<std::size_t>(length), 0);
    window.targets.resize(static_cast<std::size_t>(length), -1);
    MicroBatch batch = place(tiny.kept, lab.stream(), window, {0, 1}, 0);
    batch.training = false;
    forward(tiny.model, tiny.p, tiny.kept, tiny.work, batch);
    const std::int64_t row = (seen - 1) * config.padded_vocabulary();
    return to_host<float>(lab.stream(), tiny.kept.head.logits.slice({row, config.vocabulary}));
  }
  std::vector<Token> generate_without_cache(std::vector<Token> text, std::int64_t count,
                                            const SamplingOptions& sampling) const
  {
    const auto prompt = static_cast<std::ptrdiff_t>(text.size());
    for (std::int64_t i = 0; i < count; ++i) text.push_back(pick_token(logits_without_cache(text), sampling, i));
    return {text.begin() + prompt, text.end()};
  }

  Laboratory lab;
  TinyModel tiny;
};

/// @p count tokens that depend on their place.
std::vector<Token> some_text(std::int64_t count, std::int64_t series = 0)
{
  std::vector<Token> text;
  for (std::int64_t t = 0; t < count; ++t) text.push_back(token_of(small_config(), series, 0, t));
  return text;
}

double error_of(const std::vector<float>& a, const std::vector<float>& b)
{
  return relative_error(std::vector<double>(a.begin(), a.end()), std::vector<double>(b.begin(), b.end()));
}

/// Tolerance for sums in f32 that the two families add in different orders: some roundings of 6e-8.
constexpr double rounding = 2e-6;

}  // namespace

TEST_CASE("Generator: the reference's logits have the bits of a pass over the whole window")
{
  Subject subject(make_reference_kernels());
  Generator generator = subject.generator();
  const std::vector<Token> text = some_text(2 * T + 3);
  for (std::size_t length = 1; length <= text.size(); ++length) {  // from one token to more than two windows
    CAPTURE(length);
    const auto seen = std::span(text).first(length);
    CHECK(generator.next_logits(seen) == subject.logits_without_cache(seen));
  }
}

TEST_CASE("GeneratingPass: piece by piece it gives a Generator's logits, with parameters that move")
{
  Subject subject(make_reference_kernels());
  Laboratory& lab = subject.lab;
  const TinyModel& tiny = subject.tiny;
  Generator generator = subject.generator();
  GeneratingPass pass(lab.memory(), lab.stream(), tiny.model, DType::f32, T);
  const auto gathered = [&](std::int64_t unit) {  // a copy, which is overwritten when the pass continues
    const auto number = static_cast<int>(unit);
    const Tensor flat = lab.copied(tiny.parameters.slice(tiny.table.unit_elements(number)));
    return std::pair(flat, unit_tensors(tiny.table, number, flat));
  };
  const std::vector<Token> text = some_text(2 * T);
  for (const std::size_t length : {1, 2, 5, 12, 13, 20, 4, 24}) {
    CAPTURE(length);
    const auto seen = std::span(text).first(length);
    pass.begin(seen);
    const auto [embedding, tensors] = gathered(0);
    pass.embedding(embedding_tensors(tensors));
    for (std::size_t i = 0; i < tiny.model.branches.size(); ++i) {
      const auto [branch, of_branch] = gathered(tiny.model.branches[i].unit());
      pass.branch(i, branch_tensors(of_branch));
      lab.stream().zero(branch);
    }
    const auto [head, of_head] = gathered(unit_count(small_config()) - 1);
    CHECK(pass.head(head_tensors(of_head, tensors[0])) == generator.next_logits(seen));
    lab.stream().zero(head);
    lab.stream().zero(embedding);
  }
}

TEST_CASE("GeneratingPass: results of an abandoned pass are not reused by the next")
{
  Subject subject(make_reference_kernels());
  GeneratingPass pass(subject.lab.memory(), subject.lab.stream(), subject.tiny.model, DType::f32, T);
  const ModelTensors& p = subject.tiny.p;
  const std::vector<Token> text = some_text(6);
  pass.begin(text);
  pass.embedding(p.embedding);
  pass.branch(0, p.branches[0]);
  pass.begin(text);
  pass.embedding(p.embedding);
  for (std::size_t i = 0; i < p.branches.size(); ++i) pass.branch(i, p.branches[i]);
  CHECK(pass.head(p.head) == subject.logits_without_cache(text));
  CHECK_THROWS(pass.begin({}));
}

TEST_CASE("GeneratingPass: shards whose sums are added pairwise give the whole model's logits, bit for bit")
{
  const ModelConfig config = tiny_config(3, 4, 32, T);
  for (const int n : {2, 4}) {
    Subject subject(make_reference_kernels(), config);
    Laboratory& lab = subject.lab;
    const TinyModel& whole = subject.tiny;
    std::vector<std::unique_ptr<TinyModel>> parts;
    std::vector<std::unique_ptr<GeneratingPass>> passes;
    for (int i = 0; i < n; ++i) {
      parts.push_back(std::make_unique<TinyModel>(lab, config, TinyOptions{DType::f32, 1, T, 0, {i, n}}));
      lab.stream().copy(parts.back()->parameters, part_of(lab, parts.back()->table, whole.table, whole.parameters));
      passes.push_back(
          std::make_unique<GeneratingPass>(lab.memory(), lab.stream(), parts.back()->model, DType::f32, T));
    }
    /// What @p piece(pass, its parameters) leaves in each of them becomes the sum of all.
    const auto sum = [&](const auto& piece) {
      std::vector<Tensor> partial, sums;
      for (std::size_t i = 0; i < parts.size(); ++i) partial.push_back(piece(*passes[i], parts[i]->p));
      for (const Tensor& one : partial) sums.push_back(lab.copied(one));
      for (std::size_t distance = 1; distance < sums.size(); distance *= 2)
        for (std::size_t i = 0; i + distance < sums.size(); i += 2 * distance)
          lab.kernels()->add(sums[i], sums[i + distance]);
      for (const Tensor& one : partial) lab.stream().copy(one, sums[0]);
    };
    const Tensor logits = lab.zeros(DType::f32, {16});
    Generator generator = subject.generator();
    const std::vector<Token> text = some_text(2 * T);
    for (const std::size_t length : {1, 2, 5, 12, 13, 20, 4, 24}) {
      CAPTURE(n, length);
      const auto seen = std::span(text).first(length);
      for (const auto& pass : passes) pass->begin(seen);
      sum([](GeneratingPass& pass, const ModelTensors& p) { return pass.lookup(p.embedding); });
      for (std::size_t i = 0; i < parts.size(); ++i) passes[i]->add(parts[i]->p.embedding);
      for (std::size_t b = 0; b < whole.model.branches.size(); ++b) {
        sum([b](GeneratingPass& pass, const ModelTensors& p) { return pass.apply(b, p.branches[b]); });
        for (std::size_t i = 0; i < parts.size(); ++i) passes[i]->add(b, parts[i]->p.branches[b]);
      }
      for (int i = 0; i < n; ++i)
        lab.stream().copy(logits.slice({16 / n * i, 16 / n}),
                          passes[static_cast<std::size_t>(i)]->logits(parts[static_cast<std::size_t>(i)]->p.head));
      const std::vector<float> said = read_logits(lab.stream(), logits, config);
      CHECK(said.size() == 11);
      CHECK(said == generator.next_logits(seen));
      CHECK(said == subject.logits_without_cache(seen));
    }
    passes[0]->begin(text);
    passes[0]->lookup(parts[0]->p.embedding);
    CHECK_THROWS_AS(passes[0]->head(parts[0]->p.head), Error);
  }
}

TEST_CASE("GeneratingPass: runs of units that pass on their rows give the whole model's logits, bit for bit")
{
  Subject subject(make_reference_kernels());
  Laboratory& lab = subject.lab;
  const ModelTensors& p = subject.tiny.p;
  Generator generator = subject.generator();
  const std::vector<Token> text = some_text(2 * T);
  for (const std::int64_t blocks : {1, 2}) {  // of three in the first run
    const std::int64_t first_units = 1 + 2 * blocks;
    const Model first(subject.tiny.model.context, {0, first_units});
    const Model last(subject.tiny.model.context, {first_units, 8 - first_units});
    GeneratingPass begins(lab.memory(), lab.stream(), first, DType::f32, T);
    GeneratingPass ends(lab.memory(), lab.stream(), last, DType::f32, T);
    for (const std::size_t length : {1, 2, 5, 12, 13, 20, 4, 24}) {
      CAPTURE(blocks, length);
      const auto seen = std::span(text).first(length);
      begins.begin(seen);
      ends.begin(seen);
      begins.embedding(p.embedding);
      for (std::size_t i = 0; i < first.branches.size(); ++i) begins.branch(i, p.branches[i]);
      const Tensor sent = begins.rows(first.branches.size()), buffer = ends.rows(0);
      CHECK(sent.shape() == buffer.shape());
      lab.stream().copy(buffer, sent);
      begins.end();
      for (std::size_t i = 0; i < last.branches.size(); ++i) ends.branch(i, p.branches[first.branches.size() + i]);
      CHECK(ends.head(p.head) == generator.next_logits(seen));
    }
  }
}

TEST_CASE("GeneratingPass: a run of units takes the memory of its own blocks' keys and values")
{
  Laboratory lab;
  const TinyModel tiny(lab, small_config(), {DType::f32, 1, T});
  for (const Range& units : {Range{0, 3}, Range{3, 2}, Range{3, 5}}) {
    const Model run(tiny.model.context, units);
    const CategoryBytes before = lab.ledger().current(Tier::device);
    const GeneratingPass pass(lab.memory(), lab.stream(), run, DType::f32, T);
    CHECK(lab.ledger().current(Tier::device)[Category::activations] - before[Category::activations] ==
          4 * 2 * std::ssize(run.branches) / 2 * T * 40);
  }
}

TEST_CASE("GeneratingPass: a tensor-parallel shard takes 1/n of the memory for keys and values")
{
  const ModelConfig config = tiny_config(3, 4, 32, T);
  for (const int n : {1, 2, 4}) {
    Laboratory lab;
    const TinyModel part(lab, config, {DType::f32, 1, T, 0, {n - 1, n}});
    const CategoryBytes before = lab.ledger().current(Tier::device);
    const GeneratingPass pass(lab.memory(), lab.stream(), part.model, DType::f32, T);
    const auto taken = [&](Category category) {
      return lab.ledger().current(Tier::device)[category] - before[category];
    };
    CHECK(taken(Category::activations) == 4 * 2 * 3 * T * 32 / n);
    CHECK(taken(Category::workspace) == 4 * (4 * T * 32 + 8 * T * 32 / n + 16 / n) + 8 * T + 4 * T);
  }
}

TEST_CASE("Generator: the cpu family's logits are those of the whole window but for rounding")
{
  const ModelConfig config = tiny_config(2, 2, 40, 150);  // longer than a block of queries, and than one of keys
  for (const int count : {1, 2, 3}) {
    const Threads threads(count);
    Subject subject(make_cpu_kernels(), config);
    Generator generator = subject.generator();
    const std::vector<Token> text = some_text(155);
    for (const std::size_t length : {1, 2, 3, 63, 64, 65, 66, 129, 130, 149, 150, 151, 155}) {
      CAPTURE(count, length);
      const auto seen = std::span(text).first(length);
      CHECK(error_of(generator.next_logits(seen), subject.logits_without_cache(seen)) < rounding);
    }
  }
}

TEST_CASE("Generator: the same tokens with and without cache")
{
  for (const bool reference : {true, false}) {
    Subject subject(reference ? make_reference_kernels() : make_cpu_kernels());
    for (const std::uint32_t seed : {1U, 2U, 3U})
      for (const double temperature : {0.0, 0.7, 1.5})
        for (const std::int64_t top_k : {0, 4})
          for (const std::int64_t prompt : {std::int64_t{1}, std::int64_t{5}, T, T + 4}) {
            CAPTURE(reference, seed, temperature, top_k, prompt);
            const SamplingOptions sampling{temperature, top_k, seed};
            const std::vector<Token> text = some_text(prompt, seed);
            CHECK(subject.generator().generate(text, 2 * T, sampling) ==
                  subject.generate_without_cache(text, 2 * T, sampling));
          }
  }
}

TEST_CASE("Generator: any text may follow any other")
{
  Subject subject(make_reference_kernels());
  Generator generator = subject.generator();
  std::vector<Token> text = some_text(9);
  const auto check_text = [&](const std::string& how) {
    CAPTURE(how);
    CHECK(generator.next_logits(text) == subject.logits_without_cache(text));
  };
  check_text("first");
  check_text("the same once more");
  text.resize(4);
  check_text("shorter");
  text[1] = (text[1] + 1) % 11;
  check_text("another token in the middle");
  text = some_text(9, 1);
  check_text("something else");
  text.assign(3 * T, 7);
  check_text("one token only, so that the sliding window looks the same");
  text.push_back(7);
  check_text("once more of it");
}

TEST_CASE("Generator: its memory equals the formula, and a token allocates none")
{
  Subject subject(make_cpu_kernels());
  const ModelConfig config = small_config();
  const CategoryBytes before = subject.lab.ledger().current(Tier::device);
  {
    Generator generator = subject.generator();
    const auto taken = [&](Category category) {
      return subject.lab.ledger().current(Tier::device)[category] - before[category];
    };
    const std::int64_t C = config.channels, V = config.padded_vocabulary();
    CHECK(taken(Category::activations) == 4 * 2 * config.layers * T * C);
    CHECK(taken(Category::workspace) == 4 * (12 * T * C + V) + 8 * T + 4 * T);
    const std::int64_t peak = subject.lab.ledger().peak_total(Tier::device);
    generator.generate(some_text(3), 2 * T, {});
    CHECK(subject.lab.ledger().peak_total(Tier::device) == peak);
  }
  CHECK(subject.lab.ledger().current(Tier::device) == before);
}

TEST_CASE("Generator: an empty text, a window beyond the context and a full mask are errors")
{
  Subject subject(make_reference_kernels());
  Generator generator = subject.generator();
  CHECK_THROWS_AS(generator.next_logits({}), Error);
  CHECK_THROWS_AS(Generator(subject.lab.memory(), subject.lab.stream(), subject.tiny.model, subject.tiny.p, T + 1),
                  Error);
  ModelConfig full = small_config();
  full.mask = {Mask::Kind::full, 0};
  Subject other(make_reference_kernels(), full);
  CHECK_THROWS_AS(other.generator(), Error);
}

TEST_CASE("cached attention: each family's is that of the whole sequence, however it is cut")
{
  constexpr std::int64_t all = 150;
  for (const std::int64_t D : {8, 20, 64})
    for (const std::int64_t cut : {1, 40, 64, 149}) {
      CAPTURE(D, cut);
      const std::int64_t width = 3 * D;
      const AttentionShape shape{1, all, {0, 3}, D, {}};
      const Dropout none;
      check_against_reference([=](Data& data, const Kernels& kernels) {
        const Tensor y = data.output({all, width}), cache = data.output({all, 2 * width});
        const Tensor qkv = data.input({all, 3 * width}, numbers(1, 1.5));
        for (const Range tokens : {Range{0, cut}, Range{cut, all - cut}})
          kernels->cached_attention_forward(y.slice({tokens.first * width, tokens.count * width}), cache,
                                            qkv.slice({tokens.first * 3 * width, tokens.count * 3 * width}),
                                            {1, tokens.count, shape.heads, D, {}}, tokens);
        return std::vector<Output>{{"y", y, D}, {"cache", cache, D}};
      });
      Laboratory lab;
      const Tensor qkv = lab.filled(DType::f32, {all, 3 * width}, 1), y = lab.zeros(DType::f32, {all, width});
      const Tensor cached = lab.zeros(DType::f32, {all, width}), cache = lab.zeros(DType::f32, {all, 2 * width});
      lab.kernels()->attention_forward(y, lab.zeros(DType::f32, {1, 3, all}), qkv, shape, none);
      lab.kernels()->cached_attention_forward(cached, cache, qkv, shape, {0, all});
      CHECK(different_bits(cached, y) == 0);
      CHECK_THROWS_AS(lab.kernels()->cached_attention_forward(cached, cache, qkv, shape, {1, all}), Error);
    }
}
