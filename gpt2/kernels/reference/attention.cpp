#include <cstring>
#include <limits>
#include <vector>

#include "common/base/portable_math.hpp"
#include "gpt2/kernels/reference/attention_layer.hpp"

namespace rankwise {

namespace {

/// Scratch of one thread for one query.
template <class A>
class QueryScratch {
 public:
  QueryScratch(std::int64_t keys, std::int64_t D)
      : weights(static_cast<std::size_t>(keys)),
        factors(weights.size(), A(1)),
        D_(D),
        places_(static_cast<std::size_t>(tree_places(leaves_of_a_sequence) * (D + 2)))
  {
  }
  /// The soft-max in a place of the tree.
  SoftmaxView<A> place(std::int64_t i)
  {
    A* const at = places_.data() + i * (D_ + 2);
    return {at[0], at[1], at + 2};
  }
  std::vector<A> weights, factors;  ///< one for each key

 private:
  std::int64_t D_;
  std::vector<A> places_;
};

/// The soft-max of one query over the keys of one leaf.
///
///     score[k] = scale q.k,  sum = sum over k of exp(score[k] - maximum),
///     output = sum over k of factor[k] exp(score[k] - maximum) v[k]
template <class A, class T>
void leaf_softmax(const SoftmaxView<A>& to, QueryScratch<A>& scratch, const HeadView<T>& head, std::int64_t query,
                  Range keys, A scale)
{
  A* const weights = scratch.weights.data();  // first the scores, then their exponentials
  to.maximum = -std::numeric_limits<A>::infinity();
  to.sum = 0;
  std::fill_n(to.output, head.D, A(0));
  for (std::int64_t k = keys.first; k < keys.end(); ++k) {
    weights[k] = scale * dot(head.query(query), head.key(k), head.D);
    to.maximum = std::max(to.maximum, weights[k]);
  }
  // The maximum is subtracted first, so that no exponential overflows.
  for (std::int64_t k = keys.first; k < keys.end(); ++k) weights[k] = portable::exp(weights[k] - to.maximum);
  for (std::int64_t k = keys.first; k < keys.end(); ++k) {
    to.sum += weights[k];
    add_scaled(to.output, scratch.factors[static_cast<std::size_t>(k)] * weights[k], head.value(k), head.D);
  }
}

/// The soft-max of one query over all keys of the run that it sees: the leaves merge in the tree of tree_sum().
template <class A, class T>
SoftmaxView<A> softmax(QueryScratch<A>& scratch, const HeadView<T>& head, std::int64_t query,
                       const KeyLeaves& leaves, A scale)
{
  tree_in_places(
      leaves.order.leaves(),
      [&](std::int64_t place, std::int64_t leaf) {
        leaf_softmax(scratch.place(place), scratch, head, query, leaves.seen(leaf), scale);
      },
      [&](std::int64_t place) { merge(scratch.place(place), scratch.place(place + 1), head.D); });
  end_sums(scratch.place(0).output, head.D);
  return scratch.place(0);
}

/// Calls done(b, h, q, soft-max) for every query of every head.
template <class T, class Done>
void for_each_softmax(const ReferenceLayer<Accumulator<T>>& layer, const HeadSource<T>& source, Done&& done)
{
  using A = Accumulator<T>;
  const std::int64_t heads = layer.shape.heads.count;
#pragma omp parallel
  {
    QueryScratch<A> scratch(layer.runs.keys.count, layer.shape.D);
#pragma omp for
    for (std::int64_t bh = 0; bh < layer.shape.B * heads; ++bh) {
      const std::int64_t b = bh / heads, h = bh % heads;
      const HeadView<T> head = source.head(layer, b, h);
      for (std::int64_t q = 0; q < layer.runs.queries.count; ++q) {
        const KeyLeaves leaves = layer.seen(b, q);
        fill_factors(scratch.factors, layer, b, q, h, leaves.keys);
        done(b, h, q, softmax(scratch, head, q, leaves, layer.scale));
      }
    }
  }
}

}  // namespace

void ReferenceKernels::attention_forward(const Tensor& y, const Tensor& log_sum_exp, const Tensor& qkv,
                                         const AttentionShape& shape, const Dropout& dropout) const
{
  // weight[q, k] = exp(scale q.k - log_sum_exp[q]) over the keys k that query q sees, with scale = 1 / sqrt(D)
  // y[q] = sum over k of factor[q, k] weight[q, k] v[k] with the dropout factor, 0 or 1 / (1 - rate)
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const ReferenceLayer<A> layer(shape, all_tokens(shape), dropout);
    for_each_softmax(layer, HeadSource<T>{qkv.data<T>()}, into_layer<T>(layer, y, log_sum_exp));
  });
}

void ReferenceKernels::attention_partial(const SoftmaxPartial& partial, const Tensor& qkv, const Tensor& kv,
                                         const AttentionShape& shape, const AttentionRuns& runs,
                                         const Dropout& dropout) const
{
  with_real_type(qkv.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const ReferenceLayer<A> layer(shape, runs, dropout);
    for_each_softmax(layer, HeadSource<T>{qkv.data<T>(), kv.data<T>()}, into_partial(layer, partial));
  });
}

void ReferenceKernels::attention_merge(const SoftmaxPartial& into, const SoftmaxPartial& from) const
{
  with_real_type(into.sum.type(), [&]<class A>(A) {
    if constexpr (std::is_same_v<A, Accumulator<A>>) {
      const PartialView<A> to(into), other(from);
#pragma omp parallel for
      for (std::int64_t i = 0; i < to.rows; ++i) merge(to[i], other[i], to.D);
    }
  });
}

void ReferenceKernels::attention_divide(const Tensor& y, const Tensor& log_sum_exp,
                                        const SoftmaxPartial& partial) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const PartialView<A> all(partial);
    A* const lse = log_sum_exp.data<A>();
#pragma omp parallel for
    for (std::int64_t i = 0; i < all.rows; ++i) lse[i] = divide(y.data<T>() + all.offset(i), all[i], all.D);
  });
}

void append_keys_and_values(const Tensor& cache, const Tensor& qkv, Range tokens)
{
  check(tokens.end() <= cache.extent(0), "the sequence has more tokens than the key-value cache has rows");
  // A row of qkv is (q, k, v), a row of the cache is (k, v): everything after q is copied.
  const std::int64_t row = cache.extent(1) * bytes_of(cache.type()), query = row / 2;
  for (std::int64_t t = 0; t < tokens.count; ++t)
    std::memcpy(cache.raw() + (tokens.first + t) * row, qkv.raw() + t * (query + row) + query,
                static_cast<std::size_t>(row));
}

void ReferenceKernels::cached_attention_forward(const Tensor& y, const Tensor& cache, const Tensor& qkv,
                                                const AttentionShape& shape, Range tokens) const
{
  append_keys_and_values(cache, qkv, tokens);
  // The leaves are those of a sequence that fills the cache; a causal mask hides what is not there yet.
  const std::int64_t T = cache.extent(0);
  with_real_type(y.type(), [&]<class X>(X) {
    const ReferenceLayer<Accumulator<X>> layer({.B = 1, .T = T, .heads = shape.heads, .D = shape.D},
                                               {tokens, {0, T}}, {});
    for_each_softmax(layer, HeadSource<X>{qkv.data<X>(), cache.data<X>()},
                     [&](std::int64_t b, std::int64_t h, std::int64_t q, const auto& found) {
                       divide(y.data<X>() + layer.offset(b, h, q), found, shape.D);
                     });
  });
}

}  // namespace rankwise
