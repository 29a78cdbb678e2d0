#include "gpt2/bert/activations.hpp"

#include "gpt2/bert/parameters.hpp"

namespace rankwise {

namespace {

constexpr std::int64_t tensors_at_most = 16;

}  // namespace

BertActivations::BertActivations(const DeviceMemory& memory, const ModelConfig& config,
                                 const ActivationShape& shape, const Workspace& workspace)
    : Activations(memory, config, shape, workspace),
      more_(*memory.device, bert_bytes(config, shape), tensors_at_most)
{
  const std::int64_t R = shape.rows(), B = shape.B, C = config.channels;
  const DType statistics = accumulator_of(shape.type);
  const auto make = [&](DType type, const Shape& extents, std::string_view what) {
    return more_.make(memory, Category::activations, type, extents, what);
  };
  segments = make(DType::i32, {R}, "segments");
  lengths = make(DType::i32, {B}, "lengths");
  labels = make(DType::i32, {B}, "next-sentence labels");
  embedding_sum = make(shape.type, {R, C}, "embedding sum");
  embedding_mean = make(statistics, {R}, "embedding mean");
  embedding_rstd = make(statistics, {R}, "embedding rstd");
  embedding_norm_weight = make(shape.type, {C}, "embedding norm weight");
  transform_inner = make(shape.type, {R, C}, "transform inner");
  transform_hidden = make(shape.type, {R, C}, "transform hidden");
  pooled = make(shape.type, {B, C}, "pooled");
  next_logits = make(shape.type, {B, next_sentence_labels}, "next-sentence logits");
  next_maximum = make(statistics, {B}, "next-sentence maximum");
  next_sum = make(statistics, {B}, "next-sentence sum");
  next_target = make(statistics, {B}, "next-sentence target");
}

std::int64_t bert_bytes(const ModelConfig& config, const ActivationShape& shape)
{
  const std::int64_t s = bytes_of(shape.type), a = bytes_of(accumulator_of(shape.type));
  const std::int64_t R = shape.rows(), B = shape.B, C = config.channels;
  return s * (3 * R * C + C + B * C + next_sentence_labels * B) + a * (2 * R + 3 * B) + 4 * R + 8 * B;
}

}  // namespace rankwise
