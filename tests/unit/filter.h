// What a property passes over: questions whose answer rounding decides.
#pragma once

#include <gtest/gtest.h>

namespace unpack::testing {

// They must stay few: a filter that drops much would hide what it should find.
class Filter {
 public:
  // least: the part of what is drawn that must be left.
  Filter(double limit, double least) : limit_(limit), least_(least) {}
  ~Filter() {
    EXPECT_GE(kept_, least_ * drawn_) << "too few of " << drawn_ << " drawn cases were compared";
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;

  bool keeps(double conditioning) {
    const bool kept = conditioning > limit_;
    ++drawn_;
    kept_ += kept ? 1 : 0;
    return kept;
  }

 private:
  double limit_, least_;
  int drawn_ = 0, kept_ = 0;
};

}  // namespace unpack::testing
