#include "common/base/portable_math.hpp"
#include "gpt2/kernels/cuda/reference/attention_layer.hpp"

namespace rankwise {

namespace {

/// Inputs of the backward pass.
template <class T>
struct BackwardView {
  const T *dy, *y;
  const float* log_sum_exp;
};

/// Destination of the gradients of a whole layer: (B T, 3 D heads), like its queries, keys and values.
template <class T>
struct LayerGradient {
  __device__ T* query(const CudaReferenceLayer& layer, std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return HeadView<T>(dqkv, layer.shape, b, h).query(q);
  }
  __device__ T* key(const CudaReferenceLayer& layer, std::int64_t b, std::int64_t h, std::int64_t k) const
  {
    return HeadView<T>(dqkv, layer.shape, b, h).key(k);
  }

  T* dqkv;
};

/// Destination of the gradients of two runs: (B queries, D heads) and (B keys, 2 D heads).
struct RunGradient {
  __device__ float* query(const CudaReferenceLayer& layer, std::int64_t b, std::int64_t h, std::int64_t q) const
  {
    return dq + layer.offset(b, h, q);
  }
  __device__ float* key(const CudaReferenceLayer& layer, std::int64_t b, std::int64_t h, std::int64_t k) const
  {
    return dkv + ((b * layer.runs.keys.count + k) * 2 * layer.shape.heads.count + h) * layer.shape.D;
  }

  float *dq, *dkv;
};

/// The gradient of the score of one query and one key that it sees, and the weight of the key's value.
struct PairGradient {
  float dscore;  ///< gradient of scale q.k
  float weight;  ///< weight of the value, after dropout
};

/// forward:   weight[k] = exp(scale q.k - log_sum_exp), y = sum over k of factor[k] weight[k] v[k]
/// gradient:  dscore[k] = weight[k] (dweight[k] - sum over j of weight[j] dweight[j]), where the sum equals dy . y
template <class T>
__device__ PairGradient pair_backward(const CudaReferenceLayer& layer, const HeadView<T>& head,
                                      const BackwardView<T>& in, std::int64_t b, std::int64_t h, std::int64_t query,
                                      std::int64_t key)
{
  const std::int64_t D = layer.shape.D, at = layer.offset(b, h, query);
  const float weight = portable::exp(layer.scale * dot(head.query(query), head.key(key), D) -
                                     in.log_sum_exp[layer.row(b, h, query)]);
  const float factor = factor_of(layer, b, h, query, key);
  const float dweight = factor * dot(in.dy + at, head.value(key), D);
  return {weight * (dweight - dot(in.dy + at, in.y + at, D)), weight * factor};
}

/// Writes @p count sums, rounded.
template <class T>
__device__ void store(T* to, const float* sums, std::int64_t count)
{
  for (std::int64_t d = 0; d < count; ++d) to[d] = T(sums[d]);
}

/// A thread computes the gradient of one query of one head: dq = sum over k of scale dscore[k] k, a tree over the
/// leaves of the keys. 4 (6 R D heads + R heads) bytes move.
/// @param to  LayerGradient or RunGradient.
template <class T, class To>
void queries_backward(cudaStream_t stream, To to, HeadSource<T> source, BackwardView<T> in,
                      CudaReferenceLayer layer)
{
  for_each_token(stream, layer.shape, layer.runs.queries.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t q) {
                   const HeadView<T> head = source.head(layer, b, h);
                   const KeyLeaves leaves = layer.seen(b, q);
                   for_each_channels(head.D, [&](Range channels) {
                     SumTree dquery;
                     dquery.sum(leaves.order, [&](ChannelSums& sums, std::int64_t leaf) {
                       const Range keys = leaves.seen(leaf);
                       for (std::int64_t k = keys.first; k < keys.end(); ++k)
                         sums.add(layer.scale * pair_backward(layer, head, in, b, h, q, k).dscore, head.key(k),
                                  channels);
                     });
                     auto* const out = to.query(layer, b, h, q) + channels.first;
                     store(out, dquery.at[0].at, channels.count);
                   });
                 });
}

/// A thread computes the gradients of one key and its value, of one head: dk = sum over q of scale dscore[q] q, and
/// dv = sum over q of factor[q] weight[q] dy[q], trees over the leaves of the queries. 4 (7 R D heads + R heads) bytes
/// move.
/// @param to  LayerGradient or RunGradient.
template <class T, class To>
void keys_backward(cudaStream_t stream, To to, HeadSource<T> source, BackwardView<T> in, CudaReferenceLayer layer)
{
  const std::int64_t section = layer.shape.heads.count * layer.shape.D;  // from a key's gradient to its value's
  for_each_token(stream, layer.shape, layer.runs.keys.count,
                 [=] __device__(std::int64_t b, std::int64_t h, std::int64_t key) {
                   const HeadView<T> head = source.head(layer, b, h);
                   const auto for_each_query = [&](std::int64_t leaf, const auto& f) {
                     const Range queries = layer.query_order.run(leaf, 0);
                     for (std::int64_t q = queries.first; q < queries.end(); ++q)
                       if (key < layer.seen(b, q).keys) f(q, pair_backward(layer, head, in, b, h, q, key));
                   };
                   for_each_channels(head.D, [&](Range channels) {
                     SumTree tree;
                     tree.sum(layer.query_order, [&](ChannelSums& sums, std::int64_t leaf) {
                       for_each_query(leaf, [&](std::int64_t q, const PairGradient& pair) {
                         sums.add(layer.scale * pair.dscore, head.query(q), channels);
                       });
                     });
                     auto* const out = to.key(layer, b, h, key) + channels.first;
                     store(out, tree.at[0].at, channels.count);
                     tree.sum(layer.query_order, [&](ChannelSums& sums, std::int64_t leaf) {
                       for_each_query(leaf, [&](std::int64_t q, const PairGradient& pair) {
                         sums.add(pair.weight, in.dy + layer.offset(b, h, q), channels);
                       });
                     });
                     store(out + section, tree.at[0].at, channels.count);
                   });
                 });
}

}  // namespace

void CudaReferenceKernels::attention_backward(const Tensor& dqkv, const Tensor& dy, const Tensor& y,
                                              const Tensor& log_sum_exp, const Tensor& qkv,
                                              const AttentionShape& shape, const Dropout& dropout) const
{
  const CudaReferenceLayer layer(shape, all_tokens(shape), dropout);
  with_gpu_type(dqkv.type(), [&]<class T>(T) {
    const BackwardView<T> in{dy.data<T>(), y.data<T>(), log_sum_exp.data<float>()};
    const HeadSource<T> source{qkv.data<T>()};
    const LayerGradient<T> to{dqkv.data<T>()};
    queries_backward(gpu(), to, source, in, layer);
    keys_backward(gpu(), to, source, in, layer);
  });
}

void CudaReferenceKernels::attention_partial_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dy,
                                                      const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                                      const Tensor& kv, const AttentionShape& shape,
                                                      const AttentionRuns& runs, const Dropout& dropout) const
{
  const CudaReferenceLayer layer(shape, runs, dropout);
  with_gpu_type(y.type(), [&]<class T>(T) {
    const BackwardView<T> in{dy.data<T>(), y.data<T>(), log_sum_exp.data<float>()};
    const HeadSource<T> source{qkv.data<T>(), kv.data<T>()};
    const RunGradient to{dq.data<float>(), dkv.data<float>()};
    queries_backward(gpu(), to, source, in, layer);
    keys_backward(gpu(), to, source, in, layer);
  });
}

}  // namespace rankwise
