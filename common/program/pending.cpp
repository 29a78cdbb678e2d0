#include "common/program/pending.hpp"

#include <exception>
#include <utility>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/program/session.hpp"

namespace rankwise {

Pending::Pending(std::string what, std::function<void(SourceLocation)> wait, std::function<void()> abandon,
                 SourceLocation where)
    : started_(new Started{std::move(what), std::move(wait), std::move(abandon), where, std::uncaught_exceptions()})
{
}

Pending::~Pending()
{
  if (!started_) return;
  if (std::uncaught_exceptions() > started_->exceptions) {
    started_->abandon();
    return;
  }
  abort_job({fmt::format("{}: {} was never waited for", text_of(started_->where), started_->what), exit_failure});
}

Pending& Pending::operator=(Pending&& other) noexcept
{
  Pending taken(std::move(other));
  std::swap(started_, taken.started_);
  return *this;
}

void Pending::wait(SourceLocation where)
{
  if (const std::unique_ptr<Started> started = std::move(started_)) started->wait(where);
}

}  // namespace rankwise
