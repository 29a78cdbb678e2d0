#include <numeric>
#include <vector>

#include "gpt2/kernels/reference/reference.hpp"

namespace rankwise {

void ReferenceKernels::token_forward(const Tensor& y, const Tensor& wte, const Tensor& tokens,
                                     Range vocabulary) const
{
  with_real_type(y.type(), [&]<class T>(T) {
    T* const to = y.data<T>();
    const T* const table = wte.data<T>();
    const std::int32_t* const token = tokens.data<std::int32_t>();
    const std::int64_t R = tokens.elements(), C = y.elements() / R;
#pragma omp parallel for
    for (std::int64_t r = 0; r < R; ++r) {
      // y[r] = wte[token[r]]; a token of another vocabulary shard
      // gives zero, so the sum over shards is the embedding.
      const bool here = vocabulary.contains(token[r]);
      const T* const row = table + (here ? token[r] - vocabulary.first : 0) * C;
      for (std::int64_t c = 0; c < C; ++c) to[r * C + c] = here ? row[c] : T(0.0f);
    }
  });
}

namespace {

/// The rows sorted by token; the rows of one token stay in increasing order.
std::vector<std::int64_t> rows_by_token(const Tensor& tokens)
{
  const std::int32_t* const token = tokens.data<std::int32_t>();
  std::vector<std::int64_t> rows(static_cast<std::size_t>(tokens.elements()));
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](std::int64_t a, std::int64_t b) { return token[a] < token[b]; });
  return rows;
}

/// The positions in rows_by_token() of the rows of each token.
std::vector<Range> runs_of_equal_tokens(const std::vector<std::int64_t>& rows, const Tensor& tokens)
{
  const std::int32_t* const token = tokens.data<std::int32_t>();
  std::vector<Range> runs;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || token[rows[i]] != token[rows[i - 1]]) runs.push_back({static_cast<std::int64_t>(i), 0});
    ++runs.back().count;
  }
  return runs;
}

}  // namespace

void ReferenceKernels::token_backward(const Tensor& dwte, const Tensor& dx, const Tensor& tokens, Range vocabulary,
                                      const SumOrder& order) const
{
  // forward: y[r] = wte[token[r]] gradient: dwte[v] += sum of dx[r] over the rows r whose token is v Scanning all R
  // rows for each of the V entries would take R V steps. Therefore the rows are sorted by token first; the rows of
  // one token stay in increasing order, so that they can be divided into the leaves of the sum.
  with_real_type(dx.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const std::vector<std::int64_t> rows = rows_by_token(tokens);
    const std::vector<Range> runs = runs_of_equal_tokens(rows, tokens);
    const std::int32_t* const token = tokens.data<std::int32_t>();
    const T* const from = dx.data<T>();
    const GradientAccumulator<A> to(dwte);
    const std::int64_t C = dx.elements() / tokens.elements();
#pragma omp parallel for
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const std::int64_t v = token[rows[static_cast<std::size_t>(runs[i].first)]];
      if (!vocabulary.contains(v)) continue;
      for (std::int64_t j = 0; j < column_blocks(C); ++j) {
        const ColumnBlock block = column_block(j, C);
        // The token's rows are added leaf by leaf.
        auto next = rows.begin() + runs[i].first;
        const auto last = next + runs[i].count;
        const auto sums = stacked_sum(order.leaves(), [&](std::int64_t leaf) {
          Lanes<A, lane_count> sum;
          for (; next != last && *next < order.run(leaf, 0).end(); ++next)
            for (int w = 0; w < block.count; ++w)
              sum.at[static_cast<std::size_t>(w)] += widen(from[*next * C + block.first + w]);
          return sum;
        });
        for (int w = 0; w < block.count; ++w)
          to[(v - vocabulary.first) * C + block.first + w] += sums.at[static_cast<std::size_t>(w)];
      }
    }
  });
}

void ReferenceKernels::position_forward(const Tensor& x, const Tensor& y, const Tensor& wpe, const Rows& rows,
                                        const Dropout& dropout) const
{
  with_real_type(x.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    T* const to = x.data<T>();
    const T* const from = y.data<T>();
    const T* const table = wpe.data<T>();
    const std::int64_t C = x.elements() / rows.count();
    const DropoutMask mask(dropout);
#pragma omp parallel for
    for (std::int64_t r = 0; r < rows.count(); ++r) {
      // x[r] = dropout(y[r] + wpe[token number of row r])
      const T* const position = table + (rows.tokens.first + r % rows.tokens.count) * C;
      for (std::int64_t c = 0; c < C; ++c)
        to[r * C + c] = T((widen(from[r * C + c]) + widen(position[c])) * static_cast<A>(mask.factor(r, c)));
    }
  });
}

void ReferenceKernels::position_backward(const Tensor& dwpe, const Tensor& dx, const Rows& rows) const
{
  // forward:   x[b, t] = y[b, t] + wpe[t]
  // gradient:  dwpe[t] += sum over b of dx[b, t]
  with_real_type(dx.type(), [&]<class T>(T) {
    using A = Accumulator<T>;
    const T* const from = dx.data<T>();
    const GradientAccumulator<A> to(dwpe);
    const std::int64_t tokens = rows.tokens.count, C = dx.elements() / rows.count();
    const SumOrder order = SumOrder::sequences(rows.sequences.count);
#pragma omp parallel for
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t j = 0; j < column_blocks(C); ++j) {
        const ColumnBlock block = column_block(j, C);
        const auto sums = sum_rows<A>(order, block, [&](std::int64_t b, std::int64_t column) {
          return widen(from[(b * tokens + t) * C + column]);
        });
        for (int w = 0; w < block.count; ++w)
          to[(rows.tokens.first + t) * C + block.first + w] += sums.at[static_cast<std::size_t>(w)];
      }
  });
}

}  // namespace rankwise
