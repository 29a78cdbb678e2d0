#include "gpt2/activations.hpp"

#include <algorithm>
#include <utility>

#include "gpt2/bert/activations.hpp"

namespace rankwise {

Tensor BufferPool::make(const DeviceMemory& memory, Category category, DType type, const Shape& shape,
                        std::string_view what)
{
  const DeviceMemory from{arena_ ? arena_.get() : memory.device, memory.ledger, memory.tier};
  buffers_.emplace_back(from, category, type, shape, what);
  return buffers_.back().tensor();
}

namespace {

/// Allocates the activations of one micro-batch, tensor by tensor.
struct Maker {
  BufferPool& pool;
  const DeviceMemory& memory;
  const ModelConfig& config;
  const ActivationShape& shape;

  Tensor make(DType type, const Shape& extents, std::string_view what) const
  {
    return pool.make(memory, Category::activations, type, extents, what);
  }
  Tensor wide(std::int64_t columns, std::string_view what) const
  {
    return make(shape.type, {shape.rows(), columns}, what);
  }
  Tensor stream() const { return make(shape.type, {shape.shared_rows(), config.channels}, "stream"); }
  Tensor normalised() const { return make(shape.type, {shape.normalised_rows(), config.channels}, "normalised"); }
  Tensor statistic(std::int64_t rows, std::string_view what) const
  {
    return make(accumulator_of(shape.type), {rows}, what);
  }

  /// Allocates the tensors of a branch with experts: its routing and its experts.
  RoutedActivations routed() const
  {
    const std::int64_t C = config.channels, E = config.experts.count, k = config.experts.per_token;
    const std::int64_t R = shape.rows(), A = shape.most_sent(config), S = shape.most_received(config);
    const std::int64_t F = 4 * C / shape.part.count, leaves = shape.B * leaves_of_a_sequence;
    const DType statistics = accumulator_of(shape.type);
    return {.probabilities = make(statistics, {R, E}, "router probabilities"),
            .weights = make(statistics, {R, k}, "router weights"),
            .choices = make(DType::i32, {R, k}, "chosen experts"),
            .places = make(DType::i32, {R, k}, "places of rows"),
            .pull = make(statistics, {shape.B, E}, "auxiliary gradient"),
            .sent_leaves = make(DType::i64, {E, leaves}, "rows sent"),
            .leaf_ends = make(DType::i64, {E, leaves}, "rows received"),
            .received = make(shape.type, {S, C}, "received rows"),
            .inner = make(shape.type, {S, F}, "inner"),
            .hidden = make(shape.type, {S, F}, "hidden"),
            .returned = make(shape.type, {A, C}, "returned rows")};
  }

  /// Allocates all activations of branch @p i except its input.
  BranchActivations branch(std::int64_t i) const
  {
    const bool attention = i % 2 == 0;
    const std::int64_t C = config.channels, n = shape.part.count;
    BranchActivations a;
    a.normalised = normalised();
    a.mean = statistic(shape.shared_rows(), "mean");
    a.rstd = statistic(shape.shared_rows(), "rstd");
    if (!attention && config.has_experts(shape.first_block() + i / 2)) {
      a.routed = routed();
      return a;
    }
    a.inner = wide((attention ? 3 : 4) * C / n, "inner");
    a.hidden = wide((attention ? 1 : 4) * C / n, "hidden");
    if (attention)
      a.log_sum_exp = make(accumulator_of(shape.type), {shape.B, config.heads / n, shape.T}, "log_sum_exp");
    return a;
  }

  HeadActivations head() const
  {
    HeadActivations a;
    a.input = stream();
    a.normalised = normalised();
    a.mean = statistic(shape.shared_rows(), "mean");
    a.rstd = statistic(shape.shared_rows(), "rstd");
    a.logits = wide(config.stored_vocabulary(shape.part.count), "logits");
    a.maximum = statistic(shape.rows(), "maximum");
    a.sum = statistic(shape.rows(), "sum");
    a.target_logit = statistic(shape.rows(), "target_logit");
    return a;
  }

  Tensor norm_gradient() const { return make(shape.gradients, {config.channels}, "norm gradient"); }

  Deferred deferred() const
  {
    Deferred later;
    if (shape.has_embedding()) later.stream = wide(config.channels, "embedding gradient");
    for (std::int64_t i = 0; i < 2 * shape.blocks(config); ++i)
      later.branches.push_back(
          {.doutput = wide(config.channels, "output gradient"),
           .dinner = wide((i % 2 == 0 ? 3 : 4) * config.channels / shape.part.count, "inner gradient"),
           .norm_weight = norm_gradient(),
           .norm_bias = norm_gradient()});
    if (!shape.has_head(config)) return later;
    later.norm_weight = norm_gradient();
    later.norm_bias = norm_gradient();
    return later;
  }
};

/// Bytes of a micro-batch's activations, by kind; see activation_bytes().
struct PartBytes {
  PartBytes(const ModelConfig& config, const ActivationShape& shape)
  {
    const std::int64_t s = bytes_of(shape.type), a = bytes_of(accumulator_of(shape.type));
    const std::int64_t R = shape.rows(), n = shape.part.count, C = config.channels;
    const std::int64_t normalised = s * shape.normalised_rows() * C;
    stream = s * shape.shared_rows() * C;
    block =
        2 * stream + 2 * normalised + s * R * (12 * C / n) + a * (4 * shape.shared_rows() + R * config.heads / n);
    if (shape.has_embedding()) embedding = 4 * R;
    if (shape.has_head(config))
      head =
          stream + normalised + s * R * config.stored_vocabulary(n) + a * (2 * shape.shared_rows() + 3 * R) + 4 * R;
    if (!shape.defers_weights) return;
    const std::int64_t norm = 2 * C * bytes_of(shape.gradients);
    deferred = shape.blocks(config) * (s * R * (2 * C + 7 * C / n) + 2 * norm) +
               (shape.has_head(config) ? norm : 0) + (shape.has_embedding() ? s * R * C : 0);
  }

  std::int64_t stream = 0, block = 0, embedding = 0, head = 0, deferred = 0;
};

/// Bytes that a block with experts keeps in place of its MLP's hidden layer, less the bytes of that.
std::int64_t routed_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  const std::int64_t s = bytes_of(shape.type), a = bytes_of(accumulator_of(shape.type)), R = shape.rows();
  const std::int64_t C = config.channels, E = config.experts.count, k = config.experts.per_token;
  const std::int64_t A = shape.most_sent(config), S = shape.most_received(config);
  const std::int64_t leaves = shape.B * leaves_of_a_sequence;
  return s * ((S + A) * C + (S - R) * (8 * C / shape.part.count)) + a * (R * (E + k) + shape.B * E) + 8 * R * k +
         16 * E * leaves;
}

/// Upper bounds on the number of tensors of a branch and of a head, tokens included.
constexpr std::int64_t most_tensors = 20;

}  // namespace

Workspace::Workspace(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape)
    : pool_(*memory.device, workspace_bytes(config, shape) + (shape.recompute ? PartBytes(config, shape).block : 0),
            3 * most_tensors)
{
  const Shape all{shape.rows(), config.channels};
  output = pool_.make(memory, Category::workspace, shape.type, all, "branch output");
  dstream = pool_.make(memory, Category::workspace, shape.type, {shape.shared_rows(), config.channels},
                       "stream gradient");
  const std::int64_t inside = shape.rows() * 4 * config.channels / shape.part.count;
  wide = pool_.make(memory, Category::workspace, shape.type, {inside}, "branch gradients");
  if (shape.expert_blocks(config) > 0) {
    const std::int64_t R = shape.rows(), C = config.channels, E = config.experts.count;
    const std::int64_t A = shape.most_sent(config), S = shape.most_received(config);
    const auto scratch = [&](DType type, const Shape& extents, std::string_view what) {
      return pool_.make(memory, Category::workspace, type, extents, what);
    };
    const DType statistics = accumulator_of(shape.type);
    experts = {.logits = scratch(statistics, {R, E}, "router logits"),
               .dlogits = scratch(shape.type, {R, E}, "router logits' gradient"),
               .dweights = scratch(statistics, {R, config.experts.per_token}, "router weights' gradient"),
               .sent = scratch(shape.type, {A, C}, "sent rows"),
               .output = scratch(shape.type, {S, C}, "experts' outputs"),
               .wide = scratch(shape.type, {S, 4 * C / shape.part.count}, "experts' gradients"),
               .no_bias = scratch(shape.type, {C}, "no bias")};
  }
  if (shape.regather) gathered = pool_.make(memory, Category::workspace, shape.type, all, "gathered rows");
  if (!shape.recompute) return;
  const Maker maker{pool_, memory, config, shape};
  block = {maker.branch(0), maker.branch(1)};
  block[1].input = maker.stream();
  // A block keeps what enters it: the input of GPT-2's first norm; in BERT the rows that were normalised before it.
  if (config.architecture == Architecture::bert) std::swap(block[0].input, block[0].normalised);
}

Activations::Activations(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
                         const Workspace& workspace)
    : pool_(*memory.device, kept_bytes(config, shape), (2 * shape.blocks(config) + 1) * most_tensors)
{
  const Maker maker{pool_, memory, config, shape};
  if (shape.has_embedding()) inputs = maker.make(DType::i32, {shape.rows()}, "input tokens");
  if (shape.has_head(config)) targets = maker.make(DType::i32, {shape.rows()}, "target tokens");
  for (std::int64_t i = 0; i < 2 * shape.blocks(config); ++i) {
    const bool attention = i % 2 == 0;
    branches.push_back(shape.recompute ? workspace.block.at(static_cast<std::size_t>(i % 2)) : maker.branch(i));
    const bool keeps_normalised = shape.recompute && config.architecture == Architecture::bert;
    Tensor& entering = keeps_normalised ? branches.back().normalised : branches.back().input;
    if (attention || !shape.recompute) entering = maker.stream();
  }
  if (shape.has_head(config)) head = maker.head();
  if (shape.defers_weights) deferred = maker.deferred();
}

std::int64_t kept_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  const PartBytes part(config, shape);
  const std::int64_t with_experts = shape.expert_blocks(config);
  const std::int64_t routed = with_experts > 0 ? with_experts * routed_bytes(config, shape) : 0;
  return shape.blocks(config) * (shape.recompute ? part.stream : part.block) + routed + part.embedding + part.head +
         part.deferred + (config.architecture == Architecture::bert ? bert_bytes(config, shape) : 0);
}

std::int64_t activation_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  const PartBytes part(config, shape);
  return kept_bytes(config, shape) + (shape.recompute ? part.block - part.stream : 0);
}

std::int64_t workspace_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  const std::int64_t rows = shape.rows() + shape.shared_rows() + (shape.regather ? shape.rows() : 0);
  const std::int64_t s = bytes_of(shape.type), R = shape.rows(), C = config.channels;
  std::int64_t bytes = s * (rows * C + R * 4 * C / shape.part.count);
  if (shape.expert_blocks(config) == 0) return bytes;
  const std::int64_t E = config.experts.count, k = config.experts.per_token;
  const std::int64_t A = shape.most_sent(config), S = shape.most_received(config);
  bytes += s * ((A + S + 1) * C + S * (4 * C / shape.part.count) + R * E);
  return bytes + bytes_of(accumulator_of(shape.type)) * R * (E + k);
}

std::int64_t ActivationShape::expert_blocks(const ModelConfig& config) const
{
  if (config.experts.count == 1) return 0;
  const std::int64_t every = config.experts.every;  // the last of every n blocks has experts
  return (first_block() + blocks(config)) / every - first_block() / every;
}

namespace {

/// The most of the T tokens of a sequence that one expert takes.
std::int64_t most_taken(const ModelConfig& config, const ActivationShape& shape)
{
  return std::min(shape.T, config.experts.capacity(shape.T * shape.token_runs));
}

}  // namespace

std::int64_t ActivationShape::most_sent(const ModelConfig& config) const
{
  const ExpertConfig& experts = config.experts;
  return B * std::min(experts.per_token * T, experts.count * most_taken(config, *this));
}

std::int64_t ActivationShape::most_received(const ModelConfig& config) const
{
  const ExpertConfig& experts = config.experts;
  const std::int64_t here = experts.count / expert_ranks;
  return expert_ranks * B * std::min(experts.per_token * T, here * most_taken(config, *this));
}

}  // namespace rankwise
