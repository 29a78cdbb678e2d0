#include <limits>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/cuda/reference/attention_layer.hpp"

namespace rankwise {

namespace {

/// A soft-max over some of the keys that a query sees, as it is before the division, with some channels of the output.
struct SoftmaxSums {
  __device__ SoftmaxView<float> view() { return {maximum, sum, output.at}; }

  float maximum, sum;
  ChannelSums output;
};

/// The soft-max of one query over the keys of the run that it sees, with some channels of its output; scores are
/// recomputed instead of stored.
template <class T, class Factor>
__device__ SoftmaxSums softmax(const HeadView<T>& head, std::int64_t query, const KeyLeaves& leaves, float scale,
                               const Factor& factor, Range channels)
{
  SoftmaxSums places[SumTree::places];
  tree_in_places(
      leaves.order.leaves(),
      [&](std::int64_t place, std::int64_t leaf) {
        SoftmaxSums& to = places[place];
        to = {-std::numeric_limits<float>::infinity(), 0, {}};
        const Range keys = leaves.seen(leaf);
        for (std::int64_t k = keys.first; k < keys.end(); ++k) {
          const float score = scale * dot(head.query(query), head.key(k), head.D);
          if (to.maximum < score) to.maximum = score;
        }
        for (std::int64_t k = keys.first; k < keys.end(); ++k) {
          const float weight = portable::exp(scale * dot(head.query(query), head.key(k), head.D) - to.maximum);
          to.sum += weight;
          to.output.add(factor(k) * weight, head.value(k), channels);
        }
      },
      [&](std::int64_t place) { merge(places[place].view(), places[place + 1].view(), channels.count); });
  places[0].output.end();
  return places[0];
}

/// A thread computes one query of one head. 4 (4 R D heads + R heads) bytes move.
/// @param log_sum_exp  null: not wanted.
template <class T>
void forward(cudaStream_t stream, T* y, float* log_sum_exp, HeadSource<T> in, CudaReferenceLayer layer)
{
  for_each_token(stream, layer.shape, layer.runs.queries.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t q) {
                   const HeadView<T> head = in.head(layer, b, h);
                   const KeyLeaves leaves = layer.seen(b, q);
                   const auto factor = [&](std::int64_t k) { return factor_of(layer, b, h, q, k); };
                   for_each_channels(head.D, [&](Range channels) {
                     SoftmaxSums found = softmax(head, q, leaves, layer.scale, factor, channels);
                     const float lse =
                         divide(y + layer.offset(b, h, q) + channels.first, found.view(), channels.count);
                     if (log_sum_exp != nullptr) log_sum_exp[layer.row(b, h, q)] = lse;
                   });
                 });
}

/// A thread computes one query of one head. 4 (2 Q D heads + 2 K D heads + 2 Q heads) bytes move, Q = B queries, K = B
/// keys.
template <class T>
void partial_forward(cudaStream_t stream, PartialView<float> to, HeadSource<T> in, CudaReferenceLayer layer)
{
  for_each_token(stream, layer.shape, layer.runs.queries.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t q) {
                   const HeadView<T> head = in.head(layer, b, h);
                   const KeyLeaves leaves = layer.seen(b, q);
                   const auto factor = [&](std::int64_t k) { return factor_of(layer, b, h, q, k); };
                   for_each_channels(head.D, [&](Range channels) {
                     const SoftmaxSums found = softmax(head, q, leaves, layer.scale, factor, channels);
                     float* const out = to.output + layer.offset(b, h, q) + channels.first;
                     for (std::int64_t d = 0; d < channels.count; ++d) out[d] = found.output.at[d];
                     to.maximum[layer.row(b, h, q)] = found.maximum;
                     to.sum[layer.row(b, h, q)] = found.sum;
                   });
                 });
}

/// A thread merges one query of one head. 12 (Q D heads + 2 Q heads) bytes move.
void merge(cudaStream_t stream, PartialView<float> into, PartialView<float> from)
{
  for_each(stream, into.rows, [=] __device__(std::int64_t i) { merge(into[i], from[i], into.D); });
}

/// A thread divides one query of one head. 8 Q D heads + 12 Q heads bytes move.
template <class T>
void divide(cudaStream_t stream, T* y, float* log_sum_exp, PartialView<float> partial)
{
  for_each(stream, partial.rows, [=] __device__(std::int64_t i) {
    log_sum_exp[i] = divide(y + partial.offset(i), partial[i], partial.D);
  });
}

/// A thread copies one element of the rows that are appended to the cache. 16 D heads bytes per token move.
template <class T>
void append_to_cache(cudaStream_t stream, T* cache, const T* qkv, std::int64_t width, Range tokens)
{
  for_each_element(stream, tokens.count, 2 * width, [=] __device__(std::int64_t t, std::int64_t i) {
    cache[(tokens.first + t) * 2 * width + i] = qkv[t * 3 * width + width + i];
  });
}

}  // namespace

void CudaReferenceKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                             const AttentionShape& shape, const Dropout& dropout) const
{
  with_gpu_type(y.type(), [&]<class T>(T) {
    forward(gpu(), y.data<T>(), log_sum_exp.data<float>(), HeadSource<T>{qkv.data<T>()},
            CudaReferenceLayer(shape, all_tokens(shape), dropout));
  });
}

void CudaReferenceKernels::attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                                             const AttentionShape& shape, const AttentionRuns& runs,
                                             const Dropout& dropout) const
{
  with_gpu_type(qkv.type(), [&]<class T>(T) {
    partial_forward(gpu(), PartialView<float>(partial), HeadSource<T>{qkv.data<T>(), kv.data<T>()},
                    CudaReferenceLayer(shape, runs, dropout));
  });
}

void CudaReferenceKernels::attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const
{
  merge(gpu(), PartialView<float>(into), PartialView<float>(from));
}

void CudaReferenceKernels::attention_divide(const Tensor& y, const Tensor& log_sum_exp,
                                            const SoftmaxPartial& partial) const
{
  with_gpu_type(y.type(), [&]<class T>(T) {
    divide(gpu(), y.data<T>(), log_sum_exp.data<float>(), PartialView<float>(partial));
  });
}

void append_keys_and_values(cudaStream_t stream, const Tensor& cache, const Tensor& qkv, Range tokens)
{
  check(tokens.end() <= cache.extent(0), "the sequence has more tokens than the key-value cache has rows");
  with_gpu_type(cache.type(), [&]<class T>(T) {
    append_to_cache(stream, cache.data<T>(), qkv.data<T>(), cache.extent(1) / 2, tokens);
  });
}

void CudaReferenceKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                                    const AttentionShape& shape, Range tokens) const
{
  append_keys_and_values(gpu(), cache, qkv, tokens);
  // The leaves are those of a sequence that fills the cache; a causal mask hides what is not there yet.
  const std::int64_t T = cache.extent(0);
  const CudaReferenceLayer layer({.B = 1, .T = T, .heads = shape.heads, .D = shape.D}, {tokens, {0, T}}, {});
  with_gpu_type(y.type(), [&]<class X>(X) {
    forward(gpu(), y.data<X>(), nullptr, HeadSource<X>{qkv.data<X>(), cache.data<X>()}, layer);
  });
}

}  // namespace rankwise
