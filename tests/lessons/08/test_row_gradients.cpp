// The gradients of lesson 08 that are sums over rows: the bits of one device, though each rank has some of the rows.

#include "lessons/parallel/tensor/row_gradients.hpp"
#include "tests/catch.hpp"
#include "tests/common/collectives/testing.hpp"
#include "tests/gpt2/tiny_model.hpp"

using namespace rankwise;
using namespace rankwise::testing;

namespace {

constexpr std::int64_t B = 4, T = 48, C = 32;
const ModelConfig config = tiny_config(2, 4, C, T);

/// A micro-batch that one device has computed, and this tensor-parallel rank's result for its rows.
struct DividedRows {
  explicit DividedRows(bool divides_rows, double rate)
      : tokens(divides_rows ? Part{world().rank(), world().ranks()} : Part{}),
        whole(lab, config, {DType::f32, B, T, rate}),
        batch(whole.batch(6)),
        shape{DType::f32, B, T, {}, false, tokens},
        // Halving continues the tree of the tokens' sixteenths; three ranks have another order.
        test(world().ranks() == 3 ? Algorithm::ring : Algorithm::halving),
        gradients(test.memory, lab.stream(), whole.table, shape, lab.kernels()),
        sums(lab.zeros(DType::f32, {whole.table.elements()})),
        own(model_tensors(whole.table, sums))
  {
    forward(whole.model, whole.p, whole.kept, whole.work, batch);
  }

  /// This part's rows of a tensor (B T, n).
  Tensor mine(const Tensor& all)
  {
    const std::int64_t n = all.elements() / (B * T) * (T / tokens.count);
    const Tensor rows = lab.zeros(DType::f32, {B * T / tokens.count, all.elements() / (B * T)});
    for (std::int64_t b = 0; b < B; ++b)
      lab.stream().copy(rows.slice({b * n, n}), all.slice({(b * tokens.count + tokens.index) * n, n}));
    return rows;
  }
  template <class A>
  A mine(A a)
  {
    a.input = mine(a.input);
    a.mean = mine(a.mean);
    a.rstd = mine(a.rstd);
    return a;
  }

  /// Both backward passes over the rows of branch @p i. @return whether all rows have the same bits.
  bool same_rows(std::size_t i, std::uint32_t series)
  {
    const Branch& branch = whole.model.branches[i];
    const MicroBatch rows = tokens_of(batch, tokens);
    const Tensor dx = lab.filled(DType::f32, {B * T, C}, series),
                 dnormalised = lab.filled(DType::f32, {B * T, C}, 9);
    const Tensor scratch = lab.zeros(DType::f32, {B * T, C}), own_scratch = lab.zeros(DType::f32, {B * T, C});
    const Tensor own_dx = mine(dx);
    const Tensor doutput = branch.add_backward(whole.d.branches[i], dx, scratch, batch);
    const Tensor found = gradients.add_backward(branch, own.branches[i], own_dx, own_scratch, rows);
    bool same = different_bits(found, mine(doutput)) == 0 && found.elements() == own_dx.elements();
    same = same && (found.raw() == own_dx.raw()) == (doutput.raw() == dx.raw());
    branch.normalise_backward(dx, whole.d.branches[i], dnormalised, whole.kept.branches[i], whole.p.branches[i],
                              batch);
    gradients.normalise_backward(branch, own_dx, own.branches[i], mine(dnormalised), mine(whole.kept.branches[i]),
                                 whole.p.branches[i], rows);
    return same && different_bits(own_dx, mine(dx)) == 0;
  }
  bool same_rows_of_head()
  {
    const Tensor dx = lab.zeros(DType::f32, {B * T, C}), dnormalised = lab.filled(DType::f32, {B * T, C}, 8);
    const Tensor own_dx = mine(dx);
    whole.model.head.normalise_backward(dx, whole.d.head, dnormalised, whole.kept.head, whole.p.head, batch);
    gradients.normalise_backward(whole.model.head, own_dx, own.head, mine(dnormalised), mine(whole.kept.head),
                                 whole.p.head, tokens_of(batch, tokens));
    return different_bits(own_dx, mine(dx)) == 0;
  }
  /// A whole pass.
  /// @param by_unit  whether each unit's sums are added as soon as they are complete.
  bool pass(bool by_unit = false)
  {
    bool same = same_rows_of_head();
    const auto done = [&](int unit) {
      const Range elements = whole.table.unit_elements(unit);
      if (by_unit) gradients.add_to(sums.slice(elements), elements, test.group);
    };
    done(static_cast<int>(unit_count(config) - 1));
    for (std::size_t i = whole.model.branches.size(); i-- > 0;) {
      same = same_rows(i, 20 + i) && same;
      done(static_cast<int>(i + 1));
    }
    if (!by_unit) gradients.add_to(sums, test.group);
    return same;
  }
  bool same_sums() const
  {
    if (world().ranks() == 3) return relative_error(sums, whole.gradients) < 1e-6;  // in another order
    return different_bits(sums, whole.gradients) == 0;
  }

  Laboratory lab;
  Part tokens;
  TinyModel whole;  // its gradients are what is expected
  MicroBatch batch;
  ActivationShape shape;
  GroupForTest test;
  RowGradients gradients;
  Tensor sums;  // of this part
  ModelTensors own;
};

}  // namespace

TEST_CASE("RowGradients: sums over the rows of all parts have the bits of one device, pass after pass")
{
  for (const bool divides_rows : {false, true})
    for (const double rate : {0.0, 0.2}) {
      INFO("divides rows " << divides_rows << ", dropout " << rate);
      DividedRows rows(divides_rows, rate);
      const bool first_pass = rows.pass(), first_sums = rows.same_sums();
      const bool second_pass = rows.pass(), second_sums = rows.same_sums();  // sums begin at zero again
      CHECK(first_pass);
      CHECK(first_sums);
      CHECK(second_pass);
      CHECK(second_sums);
      CHECK(rows.lab.kernels()->squared_norm(rows.sums).value() > 0);
    }
}

TEST_CASE("RowGradients: unit by unit they have the same bits")
{
  DividedRows rows(true, 0);
  for (int pass = 0; pass < 2; ++pass) {
    CHECK(rows.pass(true));
    CHECK(rows.same_sums());
  }
  std::int64_t numbers = 0;
  for (int unit = 0; unit < unit_count(config); ++unit)
    numbers += RowGradients::elements(rows.whole.table, rows.shape, rows.whole.table.unit_elements(unit));
  CHECK(numbers == RowGradients::elements(rows.whole.table, rows.shape));
}

TEST_CASE("RowGradients: 3 C numbers a branch, 2 C for the head, times the sequences; none where no row is divided")
{
  for (const bool divides_rows : {false, true}) {
    DividedRows rows(divides_rows, 0);
    const std::int64_t numbers = rows.tokens.count > 1 ? B * (4 * 3 * C + 2 * C) : 0;
    CHECK(RowGradients::elements(rows.whole.table, rows.shape) == numbers);
    CHECK(rows.test.ledger.current(Tier::device)[Category::communication] == 4 * numbers);
    rows.test.traffic.clear();
    rows.gradients.add_to(rows.sums, rows.test.group);
    CHECK((rows.test.traffic.total().messages > 0) == (numbers > 0));
  }
}

TEST_CASE(
    "RowGradients: of a branch with experts those of the norm only, since each rank sums over all routed rows")
{
  ModelConfig with_experts = config;
  with_experts.experts = {.count = 4, .per_token = 1, .every = 2};  // one of two blocks
  const ActivationShape divided{DType::f32, B, T, {0, 2}, false, {0, 2}};
  CHECK(RowGradients::elements(ParameterTable(config, {0, 2}), divided) -
            RowGradients::elements(ParameterTable(with_experts, {0, 2}), divided) ==
        B * C);
}
