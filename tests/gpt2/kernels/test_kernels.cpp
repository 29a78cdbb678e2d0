// Kernels report activity: the process counts as working during a call, and each return counts as progress.

#include <memory>
#include <span>
#include <vector>

#include "common/base/activity.hpp"
#include "gpt2/kernels/reference/reference.hpp"
#include "tests/catch.hpp"

using namespace rankwise;

namespace {

/// Looks at the activity while it adds.
class Looking final : public ReferenceKernels {
 public:
  explicit Looking(Activity& seen) : seen_(seen) {}
  void add(const Tensor& into, const Tensor& from) const override
  {
    seen_ = current_activity();
    ReferenceKernels::add(into, from);
  }

 private:
  Activity& seen_;
};

}  // namespace

TEST_CASE("Kernels: a call counts as work while it runs, and as progress when it returns")
{
  Activity seen;
  const Kernels kernels(std::make_unique<Looking>(seen));
  std::vector<float> into{1, 2}, from{3, 4};
  const Activity before = current_activity();
  kernels->add(Tensor(std::span<float>(into), {2}), Tensor(std::span<float>(from), {2}));
  REQUIRE(into == std::vector<float>{4, 6});
  REQUIRE(before.working == 0);
  REQUIRE(seen.working == 1);
  REQUIRE(seen.finished == before.finished);
  REQUIRE(current_activity().working == 0);
  REQUIRE(current_activity().finished > before.finished);
}
