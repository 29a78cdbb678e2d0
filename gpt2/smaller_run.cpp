#include "gpt2/smaller_run.hpp"

#include <utility>

#include <fmt/format.h>

#include "common/base/text.hpp"

namespace rankwise {

SmallerRun::SmallerRun(std::function<std::int64_t()> needs, std::int64_t capacity)
    : needs_(std::move(needs)), capacity_(capacity), bytes_(needs_())
{
}

bool SmallerRun::changed(const std::string& option)
{
  with_ += (with_.empty() ? "" : " ") + option;
  bytes_ = needs_();
  return bytes_ <= capacity_;
}

std::string SmallerRun::enough() const
{
  return fmt::format("{} bytes are enough with {}.", group_digits(bytes_), with_);
}

std::string SmallerRun::least(const std::string& where, const std::string& advice) const
{
  return fmt::format("The least that works{} is {} bytes{}. {}", where.empty() ? "" : " " + where,
                     group_digits(bytes_), with_.empty() ? "" : ", with " + with_, advice);
}

}  // namespace rankwise
