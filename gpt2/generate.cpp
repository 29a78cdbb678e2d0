#include "gpt2/generate.hpp"

#include <algorithm>

namespace rankwise {

namespace {

/// The first @p rows rows of @p columns elements of a larger tensor.
Tensor first_rows(const Tensor& tensor, std::int64_t rows, std::int64_t columns)
{
  return tensor.slice({0, rows * columns}).reshaped({rows, columns});
}

}  // namespace

GeneratingPass::GeneratingPass(const DeviceMemory& memory, Stream& stream, const Model& model, DType type,
                               std::int64_t T)
    : stream_(stream), model_(model), T_(T)
{
  const ModelConfig& config = model.context.config;
  check(config.mask.kind == Mask::Kind::causal, "text generation needs a causal mask");
  check(T <= config.context, "the window is longer than the model's context");
  const std::int64_t C = config.channels, n = model.context.part.count;
  for (std::size_t block = 0; block < model.branches.size() / 2; ++block)
    caches_.push_back(pool_.make(memory, Category::activations, type, {T, 2 * C / n}, "keys and values"));
  const auto scratch = [&](DType element, const Shape& shape, std::string_view what) {
    return pool_.make(memory, Category::workspace, element, shape, what);
  };
  for (Tensor& rows_of_stream : streams_) rows_of_stream = scratch(type, {T, C}, "stream");
  normalised_ = scratch(type, {T, C}, "normalised");
  output_ = scratch(type, {T, C}, "branch output");
  inner_ = scratch(type, {T, 4 * C / n}, "inner");
  hidden_ = scratch(type, {T, 4 * C / n}, "hidden");
  mean_ = scratch(accumulator_of(type), {T}, "mean");
  rstd_ = scratch(accumulator_of(type), {T}, "rstd");
  inputs_ = scratch(DType::i32, {T}, "input tokens");
  logits_ = scratch(type, {1, config.stored_vocabulary(n)}, "logits");
}

/// The scratch memory of the new tokens' rows, as the activations of a branch.
BranchActivations GeneratingPass::activations(std::size_t branch) const
{
  const std::int64_t R = batch_.rows.count(), C = model_.context.config.channels, n = model_.context.part.count;
  const bool attention = model_.branches[branch].attention();
  return {.input = rows(branch),
          .normalised = first_rows(normalised_, R, C),
          .mean = mean_.slice({0, R}),
          .rstd = rstd_.slice({0, R}),
          .inner = first_rows(inner_, R, (attention ? 3 : 4) * C / n),
          .hidden = first_rows(hidden_, R, (attention ? 1 : 4) * C / n),
          .log_sum_exp = {},
          .cache = attention ? caches_[branch / 2] : Tensor()};
}

Tensor GeneratingPass::rows(std::size_t i) const
{
  return first_rows(streams_[i % 2], batch_.rows.count(), model_.context.config.channels);
}

void GeneratingPass::begin(std::span<const Token> text)
{
  check(!text.empty(), "text generation needs at least one token to continue");
  const std::span<const Token> window = text.last(std::min(text.size(), static_cast<std::size_t>(T_)));
  const auto common =
      std::mismatch(window.begin(), window.end(), seen_.begin(), seen_.end()).first - window.begin();
  window_.assign(window.begin(), window.end());
  seen_.clear();
  const auto size = static_cast<std::int64_t>(window.size()), cached = std::min<std::int64_t>(common, size - 1);
  const Range tokens{cached, size - cached};
  batch_ = {.inputs = inputs_.slice({0, tokens.count}), .targets = {}, .rows = {{0, 1}, tokens}, .training = false};
  stream_.copy(batch_.inputs, Tensor(window_.data(), DType::i32, {size}).slice(tokens));
}

Tensor GeneratingPass::output() const
{
  return first_rows(output_, batch_.rows.count(), model_.context.config.channels);
}

Tensor GeneratingPass::lookup(const EmbeddingTensors& p)
{
  model_.embedding.lookup(output(), p, batch_);
  return output();
}

void GeneratingPass::add(const EmbeddingTensors& p)
{
  model_.embedding.add(rows(0), output(), p, batch_);
}

void GeneratingPass::embedding(const EmbeddingTensors& p)
{
  lookup(p);
  add(p);
}

Tensor GeneratingPass::apply(std::size_t i, const BranchTensors& p)
{
  const BranchActivations a = activations(i);
  model_.branches[i].normalise(a, p);
  model_.branches[i].apply(output(), a, p, batch_);
  return output();
}

void GeneratingPass::add(std::size_t i, const BranchTensors& p)
{
  model_.branches[i].add(rows(i + 1), activations(i), output(), p, batch_);
}

void GeneratingPass::branch(std::size_t i, const BranchTensors& p)
{
  apply(i, p);
  add(i, p);
}

Tensor GeneratingPass::logits(const HeadTensors& p)
{
  const std::int64_t R = batch_.rows.count(), C = model_.context.config.channels;
  const HeadActivations last{.input = rows(model_.branches.size()).slice({(R - 1) * C, C}),
                             .normalised = normalised_.slice({0, C}),
                             .mean = mean_.slice({0, 1}),
                             .rstd = rstd_.slice({0, 1}),
                             .logits = logits_,
                             .maximum = {},
                             .sum = {},
                             .target_logit = {}};
  model_.head.normalise(last, p);
  model_.head.logits(last, p);
  end();
  return logits_;
}

std::vector<float> GeneratingPass::head(const HeadTensors& p)
{
  check(model_.context.part.count == 1, "head() needs a model that is not sharded");
  return read_logits(stream_, logits(p), model_.context.config);
}

std::vector<float> read_logits(Stream& stream, const Tensor& logits, const ModelConfig& config)
{
  const Tensor all = logits.slice({0, config.vocabulary});
  return with_real_type(all.type(), [&]<class T>(T) {
    const std::vector<T> elements = to_host<T>(stream, all);
    std::vector<float> values(elements.size());
    std::ranges::transform(elements, values.begin(), [](T logit) { return static_cast<float>(logit); });
    return values;
  });
}

// ---- Generator -------------------------------------------------------------------------------------------------

Generator::Generator(const DeviceMemory& memory, Stream& stream, const Model& model, const ModelTensors& weights,
                     std::int64_t T)
    : weights_(weights), pass_(memory, stream, model, weights.embedding.token.type(), T)
{
}

std::vector<float> Generator::next_logits(std::span<const Token> text)
{
  pass_.begin(text);
  pass_.embedding(weights_.embedding);
  for (std::size_t i = 0; i < weights_.branches.size(); ++i) pass_.branch(i, weights_.branches[i]);
  return pass_.head(weights_.head);
}

std::vector<Token> Generator::generate(std::span<const Token> prompt, std::int64_t count,
                                       const SamplingOptions& sampling)
{
  std::vector<Token> text(prompt.begin(), prompt.end());
  for (std::int64_t number = 0; number < count; ++number)
    text.push_back(pick_token(next_logits(text), sampling, number));
  return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace rankwise
