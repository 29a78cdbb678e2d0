#include "gpt2/activations.hpp"

namespace rankwise {

Tensor BufferPool::make(const DeviceMemory& memory, Category category, DType type, const Shape& shape,
                        std::string_view what)
{
  buffers_.emplace_back(memory, category, type, shape, what);
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

}  // namespace

Workspace::Workspace(const DeviceMemory& memory, const ModelConfig& config, const ActivationShape& shape)
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
  const std::int64_t s = bytes_of(shape.type), a = bytes_of(accumulator_of(shape.type));
  const std::int64_t R = shape.rows(), n = shape.part.count;
  const std::int64_t C = config.channels, H = config.heads, L = config.layers, V = config.padded_vocabulary();
  const std::int64_t block = s * R * (4 * C + 12 * C / n) + a * R * (4 + H / n);
  const std::int64_t head = s * R * (2 * C + V / n) + 5 * a * R + 8 * R;
  return shape.recompute ? L * s * R * C + block - s * R * C + head : L * block + head;
}

std::int64_t workspace_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  return bytes_of(shape.type) * shape.rows() * (2 * config.channels + 4 * config.channels / shape.part.count);
}

}  // namespace rankwise
