"""The methods of `lazytpu.ir.builder.Builder`, by op family."""
