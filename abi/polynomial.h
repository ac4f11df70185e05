// SPDX-License-Identifier: Apache-2.0
//
// What a number is at any sizes, found from what it is at some of them: a constant, or a polynomial of at most two monomials with rational
// coefficients. Both sides of the contract write down what they made at many sizes so: the core its graphs, a plugin its plans.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace keirin::sizes {

using Wide = __int128;

inline constexpr int64_t kMostNumber = int64_t{1} << 62;
inline constexpr size_t kMostSizes = 16;

// (first * a + second * b) / divisor, where a and b are monomials, by number in the order of each_monomial. One monomial: second is 0.
struct Polynomial {
  int64_t first = 0, second = 0, divisor = 1;
  size_t a = 0, b = 0;
  bool operator==(const Polynomial&) const = default;
};

namespace impl {

// Those of `degree` factors from size `at` on.
template <class F>
void monomials_from(size_t at, size_t num_sizes, unsigned degree, uint8_t* exponents, const F& f) {
  constexpr unsigned kMostOfOne = 2;  // exponent of a size
  if (degree > kMostOfOne * (num_sizes - at)) return;
  if (at == num_sizes) {
    f(static_cast<const uint8_t*>(exponents));
    return;
  }
  for (unsigned e = 0; e <= kMostOfOne && e <= degree; ++e) {
    exponents[at] = static_cast<uint8_t>(e);
    monomials_from(at + 1, num_sizes, degree - e, exponents, f);
  }
  exponents[at] = 0;
}

}  // namespace impl

// Calls f with the exponents of each monomial of so many sizes, at most kMostSizes, those of few factors first: what a number follows is
// the first that fits.
template <class F>
void each_monomial(size_t num_sizes, const F& f) {
  const unsigned most = num_sizes <= 3 ? 4 : 2;  // factors
  uint8_t exponents[kMostSizes] = {};
  for (unsigned degree = 0; degree <= most; ++degree) impl::monomials_from(0, num_sizes, degree, exponents, f);
}

// False: beyond kMostNumber.
inline bool power_of(const int64_t* sizes, const uint8_t* exponents, size_t num_sizes, Wide& out) {
  out = 1;
  for (size_t i = 0; i < num_sizes; ++i)
    for (uint8_t k = 0; k < exponents[i]; ++k) {
      out *= sizes[i];
      if (out > kMostNumber || out < -kMostNumber) return false;
    }
  return true;
}

// What p is where its monomials are a and b; false: not whole, or too large.
inline bool value_of(const Polynomial& p, Wide a, Wide b, int64_t& out) {
  const Wide sum = p.first * a + p.second * b;
  if (sum % p.divisor != 0) return false;
  const Wide number = sum / p.divisor;
  if (number > kMostNumber || number < -kMostNumber) return false;
  out = static_cast<int64_t>(number);
  return true;
}

namespace impl {

// False: coefficients are larger than a program's constants are.
inline bool reduced(Wide first, Wide second, Wide divisor, size_t a, size_t b, Polynomial& out) {
  if (divisor == 0) return false;
  const auto gcd = [](Wide x, Wide y) {
    x = x < 0 ? -x : x, y = y < 0 ? -y : y;
    while (y != 0) {
      const Wide rest = x % y;
      x = y, y = rest;
    }
    return x;
  };
  Wide by = gcd(gcd(first, second), divisor);
  if (divisor < 0) by = -by;
  first /= by, second /= by, divisor /= by;
  constexpr Wide kMost = int64_t{1} << 31;
  if (first > kMost || first < -kMost || second > kMost || second < -kMost || divisor > kMost) return false;
  out = {static_cast<int64_t>(first), static_cast<int64_t>(second), static_cast<int64_t>(divisor), a, b};
  return true;
}

inline bool fits(const Polynomial& p, const int64_t* numbers, size_t count, const Wide* powers) {
  for (size_t k = 0; k < count; ++k)
    if (p.first * powers[p.a * count + k] + p.second * powers[p.b * count + k] != static_cast<Wide>(numbers[k]) * p.divisor) return false;
  return true;
}

// By Cramer's rule, of the first two places at which the monomials are not in the same ratio.
inline bool through(const int64_t* numbers, size_t count, const Wide* powers, size_t a, size_t b, Polynomial& out) {
  const Wide *pa = powers + a * count, *pb = powers + b * count;
  for (size_t k = 1; k < count; ++k) {
    const auto det = [](Wide p, Wide q, Wide r, Wide s, Wide& is) {
      Wide ps, qr;
      return !__builtin_mul_overflow(p, s, &ps) && !__builtin_mul_overflow(q, r, &qr) && !__builtin_sub_overflow(ps, qr, &is);
    };
    Wide divisor, first, second;
    if (!det(pa[0], pb[0], pa[k], pb[k], divisor)) return false;
    if (divisor == 0) continue;
    if (!det(numbers[0], pb[0], numbers[k], pb[k], first) || !det(pa[0], numbers[0], pa[k], numbers[k], second)) return false;
    return reduced(first, second, divisor, a, b, out);
  }
  return false;
}

}  // namespace impl

// The first polynomial that all of `count` numbers follow; false: none. powers[m * count + k]: monomial m where numbers[k] is.
inline bool polynomial_of(const int64_t* numbers, size_t count, const Wide* powers, size_t num_monomials, Polynomial& out) {
  for (size_t a = 0; a < num_monomials; ++a)
    if (impl::reduced(numbers[0], 0, powers[a * count], a, a, out) && impl::fits(out, numbers, count, powers)) return true;
  for (size_t a = 0; a < num_monomials; ++a)
    for (size_t b = a + 1; b < num_monomials; ++b)
      if (impl::through(numbers, count, powers, a, b, out) && impl::fits(out, numbers, count, powers)) return true;
  return false;
}

// How a number is written that follows a polynomial: itself, or as the bits of a double: itself, its reciprocal, or that rounded to f32.
enum class As : uint8_t { kWhole, kReal, kReciprocal, kReciprocalF32 };

// False: the number cannot be written so. Doubles hold whole numbers up to 2^53.
inline bool write_as(As as, int64_t number, int64_t& bits) {
  if (as == As::kWhole) return bits = number, true;
  const double whole = static_cast<double>(number);
  if (fabs(whole) >= 0x1p53 || (as != As::kReal && number == 0)) return false;
  const double real = as == As::kReal         ? whole
                      : as == As::kReciprocal ? 1 / whole
                                              : static_cast<double>(1 / static_cast<float>(number));
  memcpy(&bits, &real, sizeof(bits));
  return true;
}

// The number that is written so; false: these bits are of none.
inline bool read_as(As as, int64_t bits, int64_t& number) {
  if (as == As::kWhole) return number = bits, true;
  double real;
  memcpy(&real, &bits, sizeof(real));
  const double whole = as == As::kReal ? real : round(1 / real);
  if (!(fabs(whole) < 0x1p53) || whole != trunc(whole)) return false;
  number = static_cast<int64_t>(whole);
  int64_t again;
  return write_as(as, number, again) && again == bits;
}

}  // namespace keirin::sizes
