#include "gpt2/activations.hpp"

namespace rankwise {

Tensor BufferPool::make(const DeviceMemory& memory, Category category, DType type, const Shape& shape,
                        std::string_view what)
{
  const DeviceMemory from{arena_ ? arena_.get() : memory.device, memory.ledger, memory.tier};
  buffers_.emplace_back(from, category, type, shape, what);
  return buffers_.back().tensor();
}

namespace {

/// Makes the activations of one micro-batch, tensor by tensor.
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
  Tensor statistic(std::string_view what) const { return make(accumulator_of(shape.type), {shape.rows()}, what); }

  /// All but the input.
  BranchActivations branch(bool attention) const
  {
    const std::int64_t C = config.channels, n = shape.part.count;
    BranchActivations a;
    a.normalised = wide(C, "normalised");
    a.mean = statistic("mean");
    a.rstd = statistic("rstd");
    a.inner = wide((attention ? 3 : 4) * C / n, "inner");
    a.hidden = wide((attention ? 1 : 4) * C / n, "hidden");
    if (attention)
      a.log_sum_exp = make(accumulator_of(shape.type), {shape.B, config.heads / n, shape.T}, "log_sum_exp");
    return a;
  }

  HeadActivations head() const
  {
    HeadActivations a;
    a.input = wide(config.channels, "stream");
    a.normalised = wide(config.channels, "normalised");
    a.mean = statistic("mean");
    a.rstd = statistic("rstd");
    a.logits = wide(config.padded_vocabulary() / shape.part.count, "logits");
    a.maximum = statistic("maximum");
    a.sum = statistic("sum");
    a.target_logit = statistic("target_logit");
    return a;
  }
};

/// Bytes of the parts of what a micro-batch keeps; see activation_bytes().
struct PartBytes {
  PartBytes(const ModelConfig& config, const ActivationShape& shape)
  {
    const std::int64_t s = bytes_of(shape.type), a = bytes_of(accumulator_of(shape.type));
    const std::int64_t R = shape.rows(), n = shape.part.count, C = config.channels;
    stream = s * R * C;
    block = s * R * (4 * C + 12 * C / n) + a * R * (4 + config.heads / n);
    head = s * R * (2 * C + config.padded_vocabulary() / n) + 5 * a * R + 8 * R;
  }

  std::int64_t stream, block, head;
};

/// Tensors of a branch and of a head, tokens included: more than there are.
constexpr std::int64_t most_tensors = 16;

}  // namespace

Workspace::Workspace(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape)
    : pool_(*memory.device, workspace_bytes(config, shape) + (shape.recompute ? PartBytes(config, shape).block : 0),
            3 * most_tensors)
{
  const Shape stream{shape.rows(), config.channels};
  output = pool_.make(memory, Category::workspace, shape.type, stream, "branch output");
  dstream = pool_.make(memory, Category::workspace, shape.type, stream, "stream gradient");
  const std::int64_t inside = shape.rows() * 4 * config.channels / shape.part.count;
  wide = pool_.make(memory, Category::workspace, shape.type, {inside}, "branch gradients");
  if (!shape.recompute) return;
  const Maker maker{pool_, memory, config, shape};
  block = {maker.branch(true), maker.branch(false)};
  block[1].input = maker.wide(config.channels, "stream");
}

Activations::Activations(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape,
                         const Workspace& workspace)
    : pool_(*memory.device,
            config.layers * (shape.recompute ? PartBytes(config, shape).stream : PartBytes(config, shape).block) +
                PartBytes(config, shape).head,
            (2 * config.layers + 1) * most_tensors)
{
  const Maker maker{pool_, memory, config, shape};
  inputs = maker.make(DType::i32, {shape.rows()}, "input tokens");
  targets = maker.make(DType::i32, {shape.rows()}, "target tokens");
  for (int i = 0; i < 2 * config.layers; ++i) {
    const bool attention = i % 2 == 0;
    branches.push_back(shape.recompute ? workspace.block.at(static_cast<std::size_t>(i % 2))
                                       : maker.branch(attention));
    if (attention || !shape.recompute) branches.back().input = maker.wide(config.channels, "stream");
  }
  head = maker.head();
}

std::int64_t activation_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  const PartBytes part(config, shape);
  return shape.recompute ? config.layers * part.stream + part.block - part.stream + part.head
                         : config.layers * part.block + part.head;
}

std::int64_t workspace_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  return bytes_of(shape.type) * shape.rows() * (2 * config.channels + 4 * config.channels / shape.part.count);
}

}  // namespace rankwise
