// Datatypes and reductions on host memory, for what GPUs would do: narrow floats are combined as
// float and rounded to nearest even each time.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace elements {

enum class Type { int8, uint8, int32, uint32, int64, uint64, half, float32, float64, bfloat16, f8e4m3, f8e5m2, int16 };
enum class Reduction { sum, prod, min, max, band, bor, bxor };

inline size_t size_of(Type type) {
  switch (type) {
    case Type::int8: case Type::uint8: case Type::f8e4m3: case Type::f8e5m2: return 1;
    case Type::half: case Type::bfloat16: case Type::int16: return 2;
    case Type::int32: case Type::uint32: case Type::float32: return 4;
    default: return 8;
  }
}

// A float of `EXPONENT` and `MANTISSA` bits. FINITE formats have no infinity: all but the largest
// mantissa of the last exponent are numbers, and what is too large becomes the largest one.
template <typename Bits, int EXPONENT, int MANTISSA, bool FINITE, bool SATURATES>
struct Narrow {
  static constexpr int BIAS = (1 << (EXPONENT - 1)) - 1;
  static constexpr int LAST = (1 << EXPONENT) - 1;

  static float load(Bits bits) {
    static const std::vector<float> values = [] {
      std::vector<float> all(1 << (8 * sizeof(Bits)));
      for (size_t i = 0; i < all.size(); i++) all[i] = decode((Bits)i);
      return all;
    }();
    return values[bits];
  }

  static float decode(Bits bits) {
    int exponent = (bits >> MANTISSA) & LAST, mantissa = bits & ((1 << MANTISSA) - 1);
    float sign = bits >> (EXPONENT + MANTISSA) ? -1.0f : 1.0f;
    if (exponent == LAST && !FINITE) return mantissa ? NAN : sign * INFINITY;
    if (exponent == LAST && mantissa == (1 << MANTISSA) - 1) return NAN;
    if (exponent == 0) return sign * std::ldexp((float)mantissa, 1 - BIAS - MANTISSA);
    return sign * std::ldexp((float)(mantissa + (1 << MANTISSA)), exponent - BIAS - MANTISSA);
  }

  static float largest() {
    int last = FINITE ? LAST : LAST - 1, mantissa = (1 << (MANTISSA + 1)) - (FINITE ? 2 : 1);
    return std::ldexp((float)mantissa, last - BIAS - MANTISSA);
  }

  static Bits store(float value) {
    if (EXPONENT == 8 && !std::isnan(value)) {  // bfloat16: the upper half of a float
      uint32_t bits;
      memcpy(&bits, &value, sizeof bits);
      return (Bits)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    Bits sign = std::signbit(value) ? (Bits)(1 << (EXPONENT + MANTISSA)) : 0;
    if (std::isnan(value)) return sign | (Bits)((1 << (EXPONENT + MANTISSA)) - 1);
    float magnitude = std::fabs(value);
    int exponent = 0;
    if (magnitude != 0 && !std::isinf(magnitude)) std::frexp(magnitude, &exponent);
    exponent = std::max(exponent - 1, 1 - BIAS);  // the smallest numbers share an exponent
    float unit = std::ldexp(1.0f, exponent - MANTISSA);
    float rounded = std::isinf(magnitude) ? magnitude : std::nearbyint(magnitude / unit) * unit;
    if (rounded > largest()) {
      if (!SATURATES) return sign | (FINITE ? (1 << (EXPONENT + MANTISSA)) - 1 : LAST << MANTISSA);
      rounded = largest();
    }
    if (rounded == 0) return sign;
    std::frexp(rounded, &exponent);
    exponent = std::max(exponent - 1, 1 - BIAS);
    Bits mantissa = (Bits)(rounded / std::ldexp(1.0f, exponent - MANTISSA));
    // a mantissa with its leading one carries into the exponent's field, which is one less for that
    return sign | (Bits)(mantissa + ((exponent + BIAS - 1) << MANTISSA));
  }
};

using Half = Narrow<uint16_t, 5, 10, false, false>;
using Bfloat16 = Narrow<uint16_t, 8, 7, false, false>;
using F8e4m3 = Narrow<uint8_t, 4, 3, true, true>;
using F8e5m2 = Narrow<uint8_t, 5, 2, false, true>;

// Whether a comes before b; of zeros the negative one does, as on a GPU.
template <typename T>
bool is_less(T a, T b) {
  return a < b || (a == b && std::is_floating_point<T>::value && std::signbit((double)a) && !std::signbit((double)b));
}

template <typename T>
T combine_numbers(T a, T b, Reduction reduction) {
  switch (reduction) {
    case Reduction::prod: return a * b;
    case Reduction::min: return is_less(b, a) ? b : a;
    case Reduction::max: return is_less(a, b) ? b : a;
    default: return a + b;
  }
}

template <typename T>
T combine_bits(T a, T b, Reduction reduction) {
  switch (reduction) {
    case Reduction::band: return a & b;
    case Reduction::bor: return a | b;
    case Reduction::bxor: return a ^ b;
    default: return combine_numbers(a, b, reduction);
  }
}

template <typename T>
void combine_integers(T* into, const T* from, size_t count, Reduction reduction) {
  for (size_t i = 0; i < count; i++) into[i] = combine_bits(into[i], from[i], reduction);
}

template <typename T>
void combine_floats(T* into, const T* from, size_t count, Reduction reduction) {
  for (size_t i = 0; i < count; i++) into[i] = combine_numbers(into[i], from[i], reduction);
}

template <typename Format, typename Bits>
void combine_narrow(Bits* into, const Bits* from, size_t count, Reduction reduction) {
  for (size_t i = 0; i < count; i++)
    into[i] = Format::store(combine_numbers(Format::load(into[i]), Format::load(from[i]), reduction));
}

// into[i] = into[i] (+) from[i]
inline void combine(void* into, const void* from, size_t count, Type type, Reduction reduction) {
  switch (type) {
    case Type::int8: return combine_integers((int8_t*)into, (const int8_t*)from, count, reduction);
    case Type::uint8: return combine_integers((uint8_t*)into, (const uint8_t*)from, count, reduction);
    case Type::int16: return combine_integers((int16_t*)into, (const int16_t*)from, count, reduction);
    case Type::int32: return combine_integers((int32_t*)into, (const int32_t*)from, count, reduction);
    case Type::uint32: return combine_integers((uint32_t*)into, (const uint32_t*)from, count, reduction);
    case Type::int64: return combine_integers((int64_t*)into, (const int64_t*)from, count, reduction);
    case Type::uint64: return combine_integers((uint64_t*)into, (const uint64_t*)from, count, reduction);
    case Type::float32: return combine_floats((float*)into, (const float*)from, count, reduction);
    case Type::float64: return combine_floats((double*)into, (const double*)from, count, reduction);
    case Type::half: return combine_narrow<Half>((uint16_t*)into, (const uint16_t*)from, count, reduction);
    case Type::bfloat16: return combine_narrow<Bfloat16>((uint16_t*)into, (const uint16_t*)from, count, reduction);
    case Type::f8e4m3: return combine_narrow<F8e4m3>((uint8_t*)into, (const uint8_t*)from, count, reduction);
    case Type::f8e5m2: return combine_narrow<F8e5m2>((uint8_t*)into, (const uint8_t*)from, count, reduction);
  }
}

template <typename T>
void scale_numbers(T* data, size_t count, double factor, double divisor) {
  for (size_t i = 0; i < count; i++) data[i] = (T)(factor != 1 ? data[i] * (T)factor : data[i] / (T)divisor);
}

template <typename Format, typename Bits>
void scale_narrow(Bits* data, size_t count, double factor, double divisor) {
  for (size_t i = 0; i < count; i++) {
    float value = Format::load(data[i]);
    data[i] = Format::store(factor != 1 ? value * (float)factor : value / (float)divisor);
  }
}

// data[i] *= factor, or, where that is 1, data[i] /= divisor; integers lose what is left over.
inline void scale(void* data, size_t count, Type type, double factor, double divisor) {
  switch (type) {
    case Type::int8: return scale_numbers((int8_t*)data, count, factor, divisor);
    case Type::uint8: return scale_numbers((uint8_t*)data, count, factor, divisor);
    case Type::int16: return scale_numbers((int16_t*)data, count, factor, divisor);
    case Type::int32: return scale_numbers((int32_t*)data, count, factor, divisor);
    case Type::uint32: return scale_numbers((uint32_t*)data, count, factor, divisor);
    case Type::int64: return scale_numbers((int64_t*)data, count, factor, divisor);
    case Type::uint64: return scale_numbers((uint64_t*)data, count, factor, divisor);
    case Type::float32: return scale_numbers((float*)data, count, factor, divisor);
    case Type::float64: return scale_numbers((double*)data, count, factor, divisor);
    case Type::half: return scale_narrow<Half>((uint16_t*)data, count, factor, divisor);
    case Type::bfloat16: return scale_narrow<Bfloat16>((uint16_t*)data, count, factor, divisor);
    case Type::f8e4m3: return scale_narrow<F8e4m3>((uint8_t*)data, count, factor, divisor);
    case Type::f8e5m2: return scale_narrow<F8e5m2>((uint8_t*)data, count, factor, divisor);
  }
}

}  // namespace elements
